"""The part of the tags in the core."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.utils.translation import gettext_lazy as _

from jobs.doors import Extension


class TagsOfJobs(Extension):
    """Options of a task that come on top:

    tags (dict of names and templates):
        What its jobs are about: ``{"user": "{user_id}"}``. People find, cancel, retry and delete jobs by them
        (:func:`jobs.tagged`). A call may have more: ``apply_async(tags={"user": 5})``.
    """

    options = {"tags": ("a dict of names and templates, {'user': '{user_id}'}", (Mapping,))}

    def declared(self, task: Any) -> None:
        from jobs.contrib.tags.tags import templates_of

        task.tag_templates = templates_of(task)

    def called(self, task: Any) -> Callable[[Any, Any], None]:
        from jobs.contrib.tags.tags import mark

        return mark

    def selects(self) -> dict[str, Any]:
        from jobs.contrib.operations.selection import Field
        from jobs.contrib.tags.tags import parse

        says = "all jobs with a tag: user=5; with several: user=5,team=b"
        return {"tag": Field(_("Tag"), "user=5", says, "tags__have", parse)}
