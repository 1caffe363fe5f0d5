"""The way out: one HTTP client factory and the splitter of event streams."""
