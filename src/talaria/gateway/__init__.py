"""Work that arrives from chat platforms: who may speak, which conversation it is for, what goes back."""
