"""What people look at: tables to paste, plans and curves drawn as SVG, pages that stand alone.

Everything here turns values into text and touches nothing else, except ``files``, which writes.
"""
