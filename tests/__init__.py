"""Tests of pipesim."""
