"""A misspelt option of a task or of a call, or a value that cannot work, is refused by an error that names the cure."""

PART_OF = ("jobs.contrib.passing",)
