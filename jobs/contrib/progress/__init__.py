"""How far bodies are, as they say it: ``self.progress()``."""
