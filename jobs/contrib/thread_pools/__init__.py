"""Workers without processes: ``-P threads`` and ``-P solo``."""
