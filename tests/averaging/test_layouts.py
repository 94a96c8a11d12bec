"""Each layout is made by its own library, averaged by the command, and loaded again by that library."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from treefold.averaging import average_checkpoints
from treefold.torch import average_models

CALLBACKS = Path(__file__).parents[2] / "examples" / "callbacks"

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # what these libraries say to each other is not ours
]


def library(name):
    os.environ["HF_HUB_OFFLINE"] = "1"
    return pytest.importorskip(name, reason=f"needs {name}: pip install 'treefold[layouts]'", exc_type=ImportError)


def callback(name):
    spec = importlib.util.spec_from_file_location(name, CALLBACKS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(treefold):
    """Return a function that averages by the command, which ends well."""

    def average(*arguments):
        done = treefold("average", *arguments)
        assert done.code == 0, done.err
        return done

    return average


def are_same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.fixture
def llama():
    """Return a function that makes a small Llama of which the seed is the replica's number."""
    transformers = library("transformers")

    def make(replica, **options):
        config = transformers.LlamaConfig(
            vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, **options,
        )  # fmt: skip
        torch.manual_seed(replica)
        return transformers.LlamaForCausalLM(config).eval()

    return make


class TestTransformers:
    @pytest.mark.parametrize("is_tied", [False, True])
    def test_folders_cut_differently(self, llama, tmp_path, is_tied, run):
        models = [llama(replica, tie_word_embeddings=is_tied) for replica in range(3)]
        for replica, (model, size) in enumerate(zip(models, ("10KB", "40KB", "1GB"), strict=True)):
            model.save_pretrained(tmp_path / str(replica), max_shard_size=size)
        (tmp_path / "0" / "optimizer.pt").write_bytes(b"state of the run")
        (tmp_path / "0" / "tokenizer.json").write_text("{}")
        run(*(tmp_path / str(replica) for replica in range(3)), "-o", tmp_path / "mean")
        mean = type(models[0]).from_pretrained(tmp_path / "mean").eval()
        tokens = torch.arange(20)[None]
        assert torch.equal(mean(tokens).logits, average_models(models)(tokens).logits)
        names = {path.name for path in (tmp_path / "mean").iterdir()}
        first = {path.name for path in (tmp_path / "0").iterdir()}
        assert names == first - {"optimizer.pt"}
        index = json.loads((tmp_path / "mean" / "model.safetensors.index.json").read_text())
        assert set(index["weight_map"].values()) == {name for name in names if name.startswith("model-")}

    def test_a_size_of_shards_and_a_dtype(self, llama, tmp_path, run):
        for replica in range(2):
            llama(replica).save_pretrained(tmp_path / str(replica))
        done = run(tmp_path / "0", tmp_path / "1", "-o", tmp_path / "mean", "--max-shard-size", "20KB",
                   "--dtype", "bfloat16")  # fmt: skip
        assert "converted: " in done.out
        sizes = [path.stat().st_size for path in (tmp_path / "mean").glob("*.safetensors")]
        assert len(sizes) > 2
        assert max(sizes) < 25_000
        assert type(llama(0)).from_pretrained(tmp_path / "mean", dtype="auto").dtype is torch.bfloat16

    def test_an_index_into_one_file(self, llama, tmp_path):
        models = [llama(replica) for replica in range(2)]
        for replica, model in enumerate(models):
            model.save_pretrained(tmp_path / str(replica), max_shard_size="20KB")
        inputs = [tmp_path / str(replica) / "model.safetensors.index.json" for replica in range(2)]
        average_checkpoints(inputs, tmp_path / "mean.pt")
        assert are_same(torch.load(tmp_path / "mean.pt"), average_models(models).state_dict())

    def test_the_trainer_and_its_callback(self, tmp_path):
        transformers = library("transformers")
        library("accelerate")
        config = transformers.BertConfig(
            vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
        )
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config)
        data = [{"input_ids": [1, 2, number], "labels": number % 2} for number in range(8)]
        arguments = transformers.TrainingArguments(
            tmp_path / "run", max_steps=12, save_steps=3, learning_rate=1e-2, report_to=[], use_cpu=True,
            per_device_train_batch_size=4, disable_tqdm=True,
        )  # fmt: skip
        hook = callback("trainer_average").AverageLast(n=2)
        transformers.Trainer(model, arguments, train_dataset=data, callbacks=[hook]).train()
        last = [type(model).from_pretrained(tmp_path / "run" / f"checkpoint-{step}") for step in (9, 12)]
        mean = type(model).from_pretrained(tmp_path / "run" / "mean")
        assert are_same(mean.state_dict(), average_models(last).state_dict())
        assert sorted(path.name for path in (tmp_path / "run" / "mean").iterdir()) == [
            "config.json",
            "model.safetensors",
        ]


class TestLightning:
    def test_checkpoints_and_the_callback(self, tmp_path, run):
        pl = library("lightning.pytorch")

        class Line(pl.LightningModule):
            def __init__(self):
                super().__init__()
                self.save_hyperparameters()
                self.layer = torch.nn.Linear(2, 1)

            def training_step(self, batch, _):
                return self.layer(batch).square().mean()

            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)

        torch.manual_seed(0)
        saving = pl.callbacks.ModelCheckpoint(tmp_path, save_top_k=-1, every_n_epochs=1, filename="{step}")
        trainer = pl.Trainer(
            max_epochs=4, accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False,
            callbacks=[saving, callback("lightning_average").AverageLast(n=2)], default_root_dir=tmp_path,
        )  # fmt: skip
        trainer.fit(Line(), torch.utils.data.DataLoader(torch.arange(8.0).reshape(4, 2) / 8))
        states = [torch.load(tmp_path / f"step={step}.ckpt", weights_only=False)["state_dict"] for step in (12, 16)]
        wanted = average_models(states)
        mean = torch.load(tmp_path / "mean.ckpt")
        assert are_same(mean, wanted)
        module = Line()
        module.load_state_dict(mean)
        run(tmp_path / "step=12.ckpt", tmp_path / "step=16.ckpt", "-o", tmp_path / "again.pt")
        assert are_same(torch.load(tmp_path / "again.pt"), wanted)


class TestPeft:
    def test_adapters_are_averaged_with_a_warning(self, llama, tmp_path, run):
        peft = library("peft")
        states = []
        for replica in range(2):
            torch.manual_seed(replica)
            model = peft.get_peft_model(llama(0), peft.LoraConfig(r=2, init_lora_weights=False))
            model.save_pretrained(tmp_path / str(replica))
            states.append(peft.get_peft_model_state_dict(model))
        done = run(tmp_path / "0", tmp_path / "1", "-o", tmp_path / "mean")
        assert "the mean of their factors is not the factors of the mean" in done.err
        loaded = peft.PeftModel.from_pretrained(llama(0), tmp_path / "mean")
        assert are_same(peft.get_peft_model_state_dict(loaded), average_models(states))


class TestAccelerate:
    def test_folders_of_save_state(self, tmp_path, run):
        accelerate = library("accelerate")
        models = []
        for replica in range(2):
            torch.manual_seed(replica)
            accelerator = accelerate.Accelerator(cpu=True)
            model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
            made = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
            accelerator.save_state(tmp_path / str(replica))
            models.append(made[0])
        run(tmp_path / "0", tmp_path / "1", "-o", tmp_path / "mean")
        fresh = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
        accelerate.load_checkpoint_in_model(fresh, tmp_path / "mean")
        assert are_same(fresh.state_dict(), average_models(models).state_dict())
        assert [path.name for path in (tmp_path / "mean").iterdir()] == ["model.safetensors"]


RANK = """
import os, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

rank, folder = int(sys.argv[1]), sys.argv[2]
store = dist.FileStore(folder + "/store", 2)
dist.init_process_group("gloo", rank=rank, world_size=2, store=store)
mesh = init_device_mesh("cpu", (2,))
for replica in range(2):
    torch.manual_seed(replica)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
    if rank == 0:
        torch.save(model.state_dict(), f"{folder}/whole{replica}.pt")
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    weights = get_model_state_dict(model)
    state = {"model": weights, "optim": get_optimizer_state_dict(model, optimizer), "step": 3}
    dcp.save(state, checkpoint_id=f"{folder}/run{replica}")
    dcp.save(weights, checkpoint_id=f"{folder}/model{replica}")
    columns = torch.arange(30.0).reshape(5, 6) * 2**replica
    dcp.save({"w": distribute_tensor(columns, mesh, [Shard(1)])}, checkpoint_id=f"{folder}/columns{replica}")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def distributed(tmp_path_factory):
    """Return a folder with what two ranks have saved."""
    folder = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-W", "ignore", "-c", RANK]
    ranks = [subprocess.Popen([*command, str(rank), str(folder)]) for rank in range(2)]  # noqa: S603 - our own
    assert [rank.wait(timeout=300) for rank in ranks] == [0, 0]
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="two ranks over gloo are started on Linux")
class TestDistributed:
    @pytest.mark.parametrize("name", ["run", "model"])
    def test_folders_of_two_ranks(self, distributed, tmp_path, name, run):
        run(distributed / f"{name}0", distributed / f"{name}1", "-o", tmp_path / "mean.pt")
        wanted = average_models([torch.load(distributed / f"whole{replica}.pt") for replica in range(2)])
        fresh = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 1))
        fresh.load_state_dict(torch.load(tmp_path / "mean.pt"))
        assert are_same(fresh.state_dict(), wanted)

    def test_pieces_of_columns(self, distributed, tmp_path):
        average_checkpoints([distributed / "columns0", distributed / "columns1"], tmp_path / "mean.pt")
        assert torch.equal(torch.load(tmp_path / "mean.pt")["w"], torch.arange(30.0).reshape(5, 6) * 1.5)

    def test_into_a_folder(self, distributed, tmp_path):
        average_checkpoints([distributed / "model0"], tmp_path / "mean")
        assert [path.name for path in (tmp_path / "mean").iterdir()] == ["model.safetensors"]
