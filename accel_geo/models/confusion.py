"""The confusion matrix as a verb, for the models whose task counts what was taken for what."""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from accel_geo.engine.evaluation import Evaluation


class PlotsConfusion:
    """Part of a GeoModel that evaluates its validation chips to draw what it found."""

    def plot_confusion_matrix(self, path: str | os.PathLike | None = None) -> "Figure":
        """Draw how often each class was taken for which, over the validation chips or their pixels.

        Where chips have several labels: for each class, how often it was there and how often it was found.

        Args:
            path: also write the picture there.

        Raises:
            ValueError: there are no validation chips, or none with labels.
        """
        evaluation, task = self._evaluation("plot_confusion_matrix"), self.data.task
        counts = task.confusion(self.spec, evaluation.records)
        if not counts.any():
            raise ValueError("plot_confusion_matrix: no validation chip can be read and has labels that count")
        figure = task.confusion_figure(self.spec, counts)
        if path:
            figure.savefig(path)
        return figure

    def _evaluation(self, verb: str) -> "Evaluation":
        from accel_geo.engine.evaluation import evaluate

        data = self._validated(verb)
        return evaluate(self, data.valid, data.task, device=self.pixel_mean.device, distributed=False)
