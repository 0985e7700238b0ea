"""Where jobs run: `base` says what a scheduler is, `registry` knows them all, each is a folder."""
