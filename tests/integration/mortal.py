"""A loader that dies in the middle of a commit with dead letters."""

from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import CommitOutcome, TableCommit


class Death(BaseException):
    """The process is gone."""


class Mortal(SparkDeltaTables):
    """Dies once a commit has loaded letters."""

    dies = True

    def commit(self, commit: TableCommit) -> CommitOutcome:
        outcome = super().commit(commit)
        if commit.dead_letter_rows and self.dies:
            raise Death
        return outcome
