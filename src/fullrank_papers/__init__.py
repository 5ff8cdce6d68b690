"""The papers as code: their theory, and each figure and table as a command (`fullrank reproduce`)."""
