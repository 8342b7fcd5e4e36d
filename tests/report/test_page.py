import html.parser
import json

import pytest

from accel_geo.report.page import read_history, report_run, write_report
from accel_geo.report.pictures import curves, to_png

NASTY = "<b>roof</b> & \"tin\" '{{ 7 * 7 }}'"


class Page(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text, self.attributes = [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def written(tmp_path):
    png = to_png(curves([]))
    path = write_report(
        tmp_path / "report.html",
        title=NASTY,
        facts={NASTY: NASTY, "steps": 7},
        curves=png,
        table=(["class", "AP"], [[NASTY, "0.5"], ["all", "-"]]),
        pictures=[(NASTY, png), ("b.tif", png)],
        options={"--classes": [NASTY]},
        problems=[NASTY],
    )
    return path, Page(path.read_text(encoding="utf-8"))


def test_page_needs_nothing_else(written):
    path, page = written
    sources = [value for tag, name, value in page.attributes if name in ("src", "href", "srcset")]
    assert len(sources) == 3 and all(source.startswith("data:image/png;base64,") for source in sources)
    text = path.read_text(encoding="utf-8")
    assert text.count("<img") == 3
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "http" not in text and "url(" not in text and "@import" not in text


def test_names_are_shown_as_they_are(written):
    _, page = written
    assert "b" not in page.tags
    assert page.text.count(NASTY) >= 6  # title twice, fact, table, caption, problem
    assert ("img", "alt", NASTY) in page.attributes


def test_writing_leaves_no_other_file_and_a_failure_leaves_the_old_page(written, monkeypatch):
    path, _ = written
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]
    before = path.read_bytes()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(path, title="new", facts={})
    assert path.read_bytes() == before and [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_a_page_of_almost_nothing(tmp_path):
    page = Page(write_report(tmp_path / "r.html", title="empty", facts={}).read_text(encoding="utf-8"))
    assert "empty" in page.text and "img" not in page.tags and "table" not in page.tags


def test_report_of_a_run_folder(tmp_path):
    lines = [{"fit": 0, "epoch": 0, "step": i, "loss": 1.0, "losses": {"a": 1.0}, "lr": 0.1} for i in (1, 2)]
    lines.append({"fit": 0, "epoch": 0, "step": 2, "valid": {"miou": None}})
    (tmp_path / "history.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n{"fit": 0, "ep', encoding="utf-8")
    assert read_history(tmp_path / "history.jsonl") == lines  # the line that a crash cut is left out
    page = Page(report_run(tmp_path, title="run", facts={"steps": 2}, monitor="miou").read_text(encoding="utf-8"))
    assert page.tags.count("img") == 1 and (tmp_path / "report.html").exists()


def test_a_broken_history_is_named(tmp_path):
    (tmp_path / "history.jsonl").write_text('{"step": 1\n{"step": 2}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"history\.jsonl, line 1 is no JSON"):
        read_history(tmp_path / "history.jsonl")
