"""What a rehearsal found, as lines for a person."""

import json
from typing import Any


def lines(found: dict[str, Any]) -> list[str]:
    """The report for a person."""
    said = [f"{found['task']} {found['id']} {found['outcome']}; all of it was rolled back"]
    if "result" in found:
        said.append(f"  returns {found['result']}")
    for each in found["tables"]:
        parts = [f"{each[what]} {what}" for what in ("inserted", "changed", "deleted") if each[what]]
        said.append(f"  {each['model'] or each['table']}: {', '.join(parts)}")
    for row in found["rows"]:
        pairs = ", ".join(f"{name}: {_brief(old)} -> {_brief(new)}" for name, (old, new) in row["fields"].items())
        said.append(f"    {row['what']} {row['model']} {row['pk']} {pairs}".rstrip())
    for call in found["jobs"]:
        given = [*map(_brief, call["args"]), *(f"{name}={_brief(value)}" for name, value in call["kwargs"].items())]
        said.append(f"  calls {call['task']}({', '.join(given)}) on {call['queue']}")
    said += [f"  tells of {each['name']} {_brief(each['data'])}" for each in found["events"]]
    said += [f"  tried {each['what']}{': it ended there' if each['stopped'] else ''}" for each in found["tried"]]
    said += [f"  after the commit: {name}" for name in found["on_commit"]]
    said += [f"  {note}" for note in found["notes"]]
    if "error" in found:
        said += ["", found["error"]["traceback"].rstrip()]
    return said


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
