import asyncio
async def worker(q, out):
    while True:
        x = await q.get(); await asyncio.sleep(0); out.append(x * 2); q.task_done()
async def main(xs):
    q, out = asyncio.Queue(), []
    t = [asyncio.create_task(worker(q, out)) for _ in range(2)]
    for x in xs: q.put_nowait(x)
    await asyncio.wait_for(q.join(), 2)
    [x.cancel() for x in t]; await asyncio.gather(*t, return_exceptions=True)
    return sorted(out)
def run(xs): return asyncio.run(main(xs))
