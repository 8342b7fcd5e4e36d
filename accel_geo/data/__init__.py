"""From disk to chips: readers of formats, the store of decoded chips, statistics, splits, transforms."""
