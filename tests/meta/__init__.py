"""The rules of the house as tests: layers, banned names, budgets. Each rule is also shown to catch a planted breach."""
