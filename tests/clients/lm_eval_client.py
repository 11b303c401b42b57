"""lm-eval's `local-completions` on fifty items of ARC-Easy: scores and log-likelihoods are those of a scorer of our
own, which asks in another way (lists of prompts, no answer). Run by run.py.
"""
import json
import logging
import os
import pathlib
import subprocess
import tempfile
import unittest
import urllib.request

import lm_eval
from lm_eval.tasks import TaskManager

DATA = pathlib.Path(__file__).resolve().parent.parent / "data/arc_easy"
ITEMS = [json.loads(line) for line in (DATA / "head50.jsonl").read_text().splitlines()]
TASK = {
    "task": "arc_easy_head50",
    "dataset_path": "json",
    "dataset_kwargs": {
        "data_files": {
            "test": str(DATA / "head50.jsonl")
        }
    },
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{query}}\nAnswer:",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{gold}}",
    "metric_list": [{
        "metric": name,
        "aggregation": "mean",
        "higher_is_better": True
    } for name in ("acc", "acc_norm")]
}


def post(path, **body):
    request = urllib.request.Request(os.environ["OCTAVO_URL"] + path,
                                     json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=300))


def own_loglikelihoods():
    """[item][choice]: the sum over the continuation's tokens of one request per item."""
    scores = []
    for item in ITEMS:
        context = post("/tokenize", prompt=item["query"] + "\nAnswer:", add_special_tokens=False)["tokens"]
        prompts = [
            post("/tokenize", prompt=f"{item['query']}\nAnswer: {choice}", add_special_tokens=False)["tokens"]
            for choice in item["choices"]
        ]
        reply = post("/v1/completions", prompt=prompts, max_tokens=0, echo=True, logprobs=0)
        scores.append([sum(choice["logprobs"]["token_logprobs"][len(context):]) for choice in reply["choices"]])
    return scores


def accuracies(scores):
    """acc and acc_norm: of the likeliest choice, as it is and per character."""
    def share(value):
        return sum(
            max(range(len(row)), key=lambda i: value(row[i], item["choices"][i])) == item["gold"]
            for row, item in zip(scores, ITEMS)) / len(ITEMS)

    return {"acc": share(lambda score, choice: score), "acc_norm": share(lambda score, choice: score / len(choice))}


def evaluate_accuracies():
    """What `octavo evaluate --task arc_easy` says of the same items; None where this build has no tasks."""
    octavo, folder = os.environ["OCTAVO"], os.environ["OCTAVO_FOLDER"]
    if "--task" not in subprocess.run([octavo, "evaluate", "--help"], capture_output=True, text=True,
                                      check=True).stdout:
        return None
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "items.jsonl"
        subprocess.run([
            octavo, "evaluate", folder, "--quantization", "fp8", "--task", "arc_easy", "--data", DATA / "head50.jsonl",
            "--items-out", out
        ],
                       check=True,
                       stdout=subprocess.DEVNULL)
        items = [json.loads(line) for line in out.read_text().splitlines()]
    return {name: sum(item[name] for item in items) / len(items) for name in ("acc", "acc_norm")}


class LmEval(unittest.TestCase):
    def test_arc_easy(self):
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        result = lm_eval.simple_evaluate(model="local-completions",
                                         tasks=[TASK],
                                         task_manager=TaskManager(include_defaults=False),
                                         log_samples=True,
                                         bootstrap_iters=0,
                                         model_args={
                                             "model": os.environ["OCTAVO_MODEL"],
                                             "base_url": os.environ["OCTAVO_URL"] + "/v1/completions",
                                             "num_concurrent": 8,
                                             "max_retries": 1,
                                             "max_length": 2048
                                         })
        told = {name: result["results"][TASK["task"]][name + ",none"] for name in ("acc", "acc_norm")}
        samples = sorted(result["samples"][TASK["task"]], key=lambda sample: sample["doc_id"])
        theirs = [[float(answer[0][0]) for answer in sample["resps"]] for sample in samples]
        ours = own_loglikelihoods()
        self.assertEqual(len(theirs), len(ITEMS))
        for row, own in zip(theirs, ours):
            for a, b in zip(row, own):
                self.assertAlmostEqual(a, b, delta=1e-4)
        self.assertEqual(told, accuracies(ours))
        offline = evaluate_accuracies()
        if offline is None:
            print("not compared with octavo evaluate: it has no --task")
        else:
            self.assertEqual(told, offline)
        print(f"acc {told['acc']:.2f}, acc_norm {told['acc_norm']:.2f}")
        self.assertGreater(told["acc"], 0.4, "chance is 0.25")


if __name__ == "__main__":
    unittest.main()
