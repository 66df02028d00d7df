"""The core does not need it, so it is an extension. It has no part in a job: a project imports it in its tests."""
