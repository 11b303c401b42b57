#!/usr/bin/env python3
"""The chat page in a real browser, against a server that answers as slowly as the test wants.

    python3 tools/check_page.py [CHROMIUM]          (needs the Python package playwright, and Chromium)
"""
import http.server
import json
import pathlib
import sys
import threading
import time

from playwright.sync_api import sync_playwright

PAGE = pathlib.Path(__file__).resolve().parent.parent / "src/server/page/index.html"


class Handler(http.server.BaseHTTPRequestHandler):
    asked = []
    go_on = threading.Event()

    def log_message(self, *_):
        pass

    def reply(self, kind, data):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/":
            self.reply("text/html", PAGE.read_bytes())
        elif self.path == "/health":
            self.reply("application/json", b'{"ready": true, "loaded": 1}')
        else:
            self.reply("application/json", b'{"data": [{"id": "m", "max_model_len": 100}]}')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append([message["content"] for message in body["messages"]])
        number = len(self.asked)
        self.reply("text/event-stream", b"")
        try:
            for i in range(3):
                delta = {"choices": [{"delta": {"content": f"answer{number}.{i} "}, "finish_reason": None}]}
                self.wfile.write(f"data: {json.dumps(delta)}\n\n".encode())
                self.wfile.flush()
                if i == 0:
                    self.go_on.wait(20)
            self.wfile.write(b"data: [DONE]\n\n")
        except BrokenPipeError:  # a new chat leaves the old answer
            pass


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium",
                                         args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_address[1]}/")
        page.wait_for_function("document.getElementById('model').textContent.startsWith('m,')")

        def ask(text):
            page.fill("#prompt", text)
            page.keyboard.press("Enter")

        ask("first")
        page.wait_for_selector("text=answer1.0")
        page.click("#clear")  # in the middle of an answer
        assert page.inner_text("#send") == "Send", "the new chat waits for nothing"
        ask("second")  # at once, while the old answer is still on its way
        page.wait_for_selector("text=answer2.0")
        Handler.go_on.set()
        page.wait_for_selector("text=answer2.2")
        page.wait_for_function("document.getElementById('send').textContent === 'Send'")
        time.sleep(0.3)
        log = page.inner_text("#log")
        assert "answer1" not in log and "first" not in log.split("\n"), log
        ask("third")
        page.wait_for_selector("text=answer3.2")
        browser.close()
    assert Handler.asked == [["first"], ["second"], ["second", "answer2.0 answer2.1 answer2.2 ", "third"]], Handler.asked
    print("a new chat in the middle of an answer begins empty, and stays free of it")


if __name__ == "__main__":
    main()
