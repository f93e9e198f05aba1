"""A small resource manager over HTTP: it brings its own node, asks for capacity there, and recovers after a restart.

Start a server (`fairlead up`), then run this script.

Prints:
    registered
    received: node k1 up
    asked for 3 executors of 2 CPUs
    received: allocated executor [0, 2] on k1
    withdrew the rest of the ask, and released executor 0
    received: released executor [0, 1] on k1
    registered again, as after a restart
    recovered executor 1; k1 uses 2 CPUs
    removed
"""

import json
import queue
import threading

import httpx

from fairlead.client import find_endpoint

NAME = "example-manager"


class Manager:
    def __init__(self) -> None:
        endpoint = find_endpoint()
        headers = {"authorization": f"Bearer {endpoint.token}"}
        self.http = httpx.Client(base_url=f"{endpoint.url}/api/v1", headers=headers, timeout=30.0)
        self.events: queue.Queue[dict[str, object]] = queue.Queue()
        self._listening = threading.Event()

    def register(self) -> None:
        self.http.post(f"/managers/{NAME}").raise_for_status()

    def listen(self) -> None:
        """Receive events. After a disconnect, `?after=` with the id of the last event would resume the stream."""
        threading.Thread(target=self._listen, daemon=True).start()
        self._listening.wait()

    def _listen(self) -> None:
        with self.http.stream("GET", f"/managers/{NAME}/events", timeout=None) as response:
            for line in response.iter_lines():
                self._listening.set()
                if line.startswith("data: "):
                    self.events.put(json.loads(line.removeprefix("data: ")))

    def update(self, **items: list[dict[str, object]]) -> None:
        answer = self.http.post(f"/managers/{NAME}/updates", json=items).raise_for_status()
        for item in answer.json()["items"]:
            assert item["accepted"], item["reason"]


manager = Manager()
manager.register()
manager.listen()
print("registered")

node: dict[str, object] = {"name": "k1", "resources": {"cpu": 4}}
job: dict[str, object] = {"job": "app", "queue": "root.default"}
manager.update(nodes=[node], jobs=[job])
event = manager.events.get()
print(f"received: {event['what']} {event['node']} {event['reason']}")

manager.update(asks=[{"job": "app", "ask": "executor", "count": 3, "min": 1, "resources": {"cpu": 2}}])
print("asked for 3 executors of 2 CPUs")
event = manager.events.get()
print(f"received: {event['what']} {event['ask']} {event['indices']} on {event['node']}")

manager.update(asks=[{"job": "app", "ask": "executor", "withdraw": True}])
manager.update(releases=[{"job": "app", "ask": "executor", "index": 0}])
print("withdrew the rest of the ask, and released executor 0")
event = manager.events.get()
print(f"received: {event['what']} {event['ask']} {event['indices']} on {event['node']}")

manager.register()
print("registered again, as after a restart")
recover: dict[str, object] = {"job": "app", "ask": "executor", "node": "k1", "index": 1, "resources": {"cpu": 2}}
manager.update(nodes=[node], jobs=[job], recover=[recover])
print(f"recovered executor 1; k1 uses {manager.http.get('/nodes/k1').json()['used']['cpu']} CPUs")

manager.update(jobs=[{"job": "app", "remove": True}], nodes=[{"name": "k1", "action": "remove"}])
print("removed")
