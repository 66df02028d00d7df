"""Jobs whose task no worker knows (a rolling deploy, a rollback): they wait, at no cost, until a worker knows it."""
