"""Compare what a download holds with what was published."""

from __future__ import annotations

from collections import Counter

from fedad_components.datasets.spec import Count, DataSetSpec, PrepareError


class Tally:
    """Counts images, their values and distinct values while rows pass by."""

    def __init__(self, spec: DataSetSpec) -> None:
        self.spec = spec
        self.images = 0
        self._values: dict[str, Counter[str]] = {column: Counter() for column in spec.counts}
        self._distinct: dict[str, set[str]] = {column: set() for column in spec.distinct}

    def add(self, row: dict[str, str]) -> None:
        """Count one image."""
        self.images += 1
        for column, counter in self._values.items():
            counter[row[column]] += 1
        for column, values in self._distinct.items():
            values.add(row[column])

    def check(self, partial: bool = False) -> None:
        """Raise PrepareError with every number that differs from the published one; ``partial`` accepts lower ones."""
        rows = [("images", self.spec.images, self.images)]
        for column, published in self.spec.counts.items():
            found = self._values[column]
            rows += [(f"{column} {value}", Count.of(count), found[value]) for value, count in published.items()]
            rows.append((f"{column} with another value", Count.of(0), found.total() - sum(found[v] for v in published)))
        rows += [
            (f"different {column}", count, len(self._distinct[column])) for column, count in self.spec.distinct.items()
        ]
        wrong = [
            f"  {what}: expected {count}, found {found:,}"
            for what, count, found in rows
            if found > count.most or (found < count.least and not partial)
        ]
        if wrong:
            hint = "" if partial else "\nIf it is a subset on purpose, say --partial."
            raise PrepareError(f"{self.spec.title} is not as published:\n" + "\n".join(wrong) + hint)
