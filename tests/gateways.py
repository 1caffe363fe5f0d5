"""A gateway of a test: on the disk, as it survives a crash only there."""

from pathlib import Path

from talaria.app.build import open_store
from talaria.testing import Harness, ModelServer, TelegramServer


def gateway_harness(folder: Path, model: ModelServer, telegram: TelegramServer) -> Harness:
    at_model = {"default": "scripted", "provider": "custom", "base_url": model.url, "api_key": "key"}
    at_model["wire"] = "openai_chat"
    return Harness(folder, model_server=model, telegram=telegram, store=open_store, model=at_model)
