"""What may be claimed of the runs of a workload: better or worse only if each run says so, and the control of each run allows it."""

from lib import figures

CONTROL = "plain again"


def holds_one(interval):
    return interval[0] <= 1 <= interval[1]


def verdict_of(interval):
    return "same" if holds_one(interval) else "better" if interval[0] > 1 else "worse"


def ratios_to_plain(runs):
    """{way: the ratios of all rounds}"""
    ratios = {}
    for run in runs:
        for way, values in run["rounds"].items():
            ratios.setdefault(way, []).extend(b / a for a, b in zip(run["rounds"]["plain"], values))
    return ratios


def interval_of(run, way):
    return figures.interval(ratios_to_plain([run])[way])


def claim(runs, way):
    """What all runs that have this way say together.

    >>> def run(control, image):
    ...     return {"rounds": {"plain": [8.0] * 6, CONTROL: [8 * control] * 6, "image": [8 * image] * 6}}
    >>> for runs in ([run(1, 1.5)], [run(1, 0.5), run(1, 0.75)], [run(1, 1.5), run(1, 0.5)], [run(1, 1.5), run(1, 1)], [run(1, 1.5), run(1.25, 1.5)]):
    ...     claim(runs, "image")
    'better'
    'worse'
    'same'
    'same'
    'uneven'
    >>> claim([run(1, 1.5), {"rounds": {"plain": [8.0] * 6, "image": [12.0] * 6}}], "image")
    'no control'
    """
    runs = [run for run in runs if way in run["rounds"]]
    if any(CONTROL not in run["rounds"] for run in runs):
        return "no control"
    if not all(holds_one(interval_of(run, CONTROL)) for run in runs):
        return "uneven"
    found = {verdict_of(interval_of(run, way)) for run in runs}
    return found.pop() if len(found) == 1 else "same"


def days(runs):
    return {run["date"] for run in runs}


def by_neighbour(kept):
    """The runs of a workload in lists, one for each thing that ran beside."""
    lists = {}
    for run in kept["runs"]:
        lists.setdefault(run["beside"], []).append(run)
    return sorted(lists.items(), key=lambda one: one[0] or "")
