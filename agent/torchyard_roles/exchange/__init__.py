"""How tensors travel between processes of a run: authenticated connections, and sums over all workers.

wire             one connection: headers under a MAC, raw tensor bytes right behind them
reducer          the side that sums: stateless, any process may host one
reduce_client    the side that has gradients: chunks over all reducers, in both directions at once
"""
