"""Loop one: from the database into the change log. Its own process, so that it may be killed and restarted alone."""
