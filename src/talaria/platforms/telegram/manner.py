"""How a message is put: with all that the service offers, or with less of it, after it has refused some.

A refusal means that nothing was sent, so the lesser manner may be tried at once. Each has less than the one before.
"""

import msgspec


class Manner(msgspec.Struct, frozen=True):
    has_markup: bool = True
    is_reply: bool = True
    is_in_thread: bool = True
    is_photo: bool = False

    def after(self, words: str, *, is_private: bool) -> "Manner | None":
        """What to try next; None: the refusal was about something else."""
        said = words.lower()
        if self.has_markup and ("can't parse" in said or "entity_" in said or "entities_" in said):
            return msgspec.structs.replace(self, has_markup=False)
        if self.is_reply and ("repl" in said and "not found" in said):
            return msgspec.structs.replace(self, is_reply=False)
        if self.is_photo and ("photo_" in said or "image_process" in said or "too big for a photo" in said):
            return msgspec.structs.replace(self, is_photo=False)
        if self.is_in_thread and is_private and "thread not found" in said:
            return msgspec.structs.replace(self, is_in_thread=False)  # the person still reads it there
        return None
