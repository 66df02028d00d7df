"""What follows a job: links, chains, groups, chords, errbacks, and tasks that replace others."""
