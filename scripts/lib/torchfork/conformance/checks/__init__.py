"""What runs inside the torch at hand: one check for each item of first-class citizenship.

Every module here is imported by the interpreter that has the torch under test, of any release, and
may use nothing but the standard library, torch, one another and the dataclasses of codegen.model.
"""
