"""The one idea: nothing depends on the rank."""
