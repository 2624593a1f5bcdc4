def f(s):
    import json, hashlib, textwrap, calendar, operator, secrets, zlib, base64
    from xml.etree import ElementTree as E
    return json.loads(s), hashlib.md5(b'x').hexdigest()[:4], E.fromstring('<a>1</a>').text, calendar.isleap(2024), base64.b64encode(b'hi')
