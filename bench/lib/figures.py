"""What is made of samples: medians, how much single ones scatter, how well the median is known."""

import math
import random
import statistics

BOOTSTRAP_ROUNDS = 2000


def interval(values, seed=1):
    """Bootstrap 95 % interval of the median. The seed is fixed: the same samples give the same interval. A resample is `n` uniform draws
    of ranks. Only the middle ones matter, and their distribution is known (beta), so only they are drawn: thousands of values take no longer
    than ten."""
    rng, values, n = random.Random(seed), sorted(values), len(values)
    middle = (n + 1) // 2

    def resampled():
        low = high = rng.betavariate(middle, n + 1 - middle)
        if n % 2 == 0:  # the next one is the least of the draws above
            high = 1 - (1 - low) * rng.random() ** (1 / (n - middle))
        return (values[min(int(n * low), n - 1)] + values[min(int(n * high), n - 1)]) / 2

    medians = sorted(resampled() for _ in range(BOOTSTRAP_ROUNDS))
    return medians[int(0.025 * BOOTSTRAP_ROUNDS)], medians[int(0.975 * BOOTSTRAP_ROUNDS) - 1]


def summary(values):
    """Median, quartiles and the median's 95 % interval, of at least two values."""
    low, _, high = statistics.quantiles(values, n=4)
    return {"median": statistics.median(values), "quartiles": [low, high], "interval": list(interval(values))}


def percentile(values, percent):
    """The smallest value that so many percent of the values do not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def spread(values, unit=1, form="{:.1f}"):
    """The lowest to the highest, as one number where they look the same."""
    low, high = (form.format(f(values) / unit) for f in (min, max))
    return low if low == high else f"{low} to {high}"


def beyond_neighbours(turns, between):
    """How much each of `turns` is larger than the mean of the values right before and after it. `between` has one value more."""
    return [turn - (before + after) / 2 for before, turn, after in zip(between, turns, between[1:])]


def goal(found, limit):
    """Whether the whole interval of `found` (a summary) lies at or below `limit`, above it, or neither."""
    low, high = found["interval"]
    return "met" if high <= limit else "missed" if low > limit else "not shown"
