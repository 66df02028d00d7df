"""SQLite: another file was put in the place of the database's, while a worker has the old one open."""
