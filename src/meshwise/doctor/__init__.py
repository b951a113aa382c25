"""What an installation sees, and what is wrong with it.

Others use `checkup.checkup`, which runs all checks, and `finding`: what a check found, as text.
"""
