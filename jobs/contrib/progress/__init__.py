"""How far bodies are, as they report it: ``self.progress()``."""
