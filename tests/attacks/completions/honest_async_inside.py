import asyncio
async def work(x):
    await asyncio.sleep(0.001)
    return 2 * x
def double(x):
    return asyncio.run(work(x))
