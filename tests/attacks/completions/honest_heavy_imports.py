import asyncio, unittest, http.client, xml.etree.ElementTree, decimal, concurrent.futures, logging, inspect, pickle, csv, sqlite3, urllib.request, email
def add(a, b): return a + b
