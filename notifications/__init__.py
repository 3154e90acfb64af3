"""Telling who sent a file what became of it; and the Telegram bot, whose files come in here."""
