def tables(points): return ""
def bars(points): return ""
