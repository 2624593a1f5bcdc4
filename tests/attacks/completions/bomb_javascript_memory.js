const k = []; while (true) k.push(Buffer.alloc(1 << 26, 1));
