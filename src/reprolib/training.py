"""Students: a base model, fine-tuned on texts (SFT) or on preferences (DPO), or shown a few examples in its prompt.

TRL and PEFT do the work. A student is a folder of safetensors that `load_judge` reads; made from the same inputs it is
not made again, and stopped at any moment it goes on from its last whole checkpoint, to the same weights.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import pooch

from reprolib.errors import ReprolibError
from reprolib.inference.store import row_key
from reprolib.project import write_text

COLUMNS = {"sft": ["prompt", "completion"], "dpo": ["prompt", "chosen", "rejected"]}


class TrainingError(ReprolibError):
    """A student that cannot be trained: wrong examples, a loss that diverges, no memory."""


@dataclass(frozen=True)
class Settings:
    """How a student is trained. The defaults are those of Li et al. (arXiv 2502.01534), their released SFT configs.

    They fine-tune all weights in bfloat16, with 32 examples a step on eight GPUs.
    """

    method: Literal["sft", "dpo"] = "sft"
    learning_rate: float = 1e-5
    epochs: int = 3
    batch: int = 32  # examples a step, as `batch / micro_batch` forwards
    micro_batch: int = 2
    warm_up: float = 0.1  # share of the steps; then a cosine
    max_length: int = 1024  # tokens; longer examples are cut
    beta: float = 0.1  # of DPO with the sigmoid loss
    lora_rank: int = 0  # of adapters on all linear layers, merged at the end; 0 trains all weights
    dtype: Literal["bfloat16", "float32"] = "bfloat16"  # of the computation; weights and optimiser are float32
    seed: int = 42
    checkpoints: int = 4  # written during the training


PAPER = {"sft": Settings(), "dpo": Settings("dpo", learning_rate=5e-6, micro_batch=1)}  # DPO: the configs, not the text


def student_prompt(task: str, demonstrations: Sequence[tuple[str, str]] = ()) -> str:
    """What a student reads before it answers `task`: a base model's plain frame, after demonstrations if there are any.

    Tasks and answers are joined, never formatted: braces and percent signs in them mean nothing.

    >>> student_prompt("Say {hi}.", [("Add 1 and 1.", "2")])
    '### Task\\nAdd 1 and 1.\\n\\n### Answer\\n2\\n\\n### Task\\nSay {hi}.\\n\\n### Answer\\n'
    """
    shown = [*((task, answer + "\n\n") for task, answer in demonstrations), (task, "")]
    return "".join("### Task\n" + task.strip() + "\n\n### Answer\n" + answer for task, answer in shown)


def train(
    base: Path, examples: pd.DataFrame, folder: Path, settings: Settings, *, device: str = "cpu", progress: bool = False
) -> pd.DataFrame:
    """Train the model in `base` on `examples` and write the student into `folder`; the loss curve, a row a step.

    `examples` has the columns `COLUMNS` of the method, all text; an end-of-text token is put after each answer. Columns
    of the curve: step, epoch, loss (nats a token for SFT). Raises TrainingError; what was done before is kept.
    """
    columns = COLUMNS[settings.method]
    if missing := [name for name in columns if name not in examples]:
        message = f"examples for {settings.method} lack {', '.join(missing)}"
        raise TrainingError(message, hint=f"give a table with {', '.join(columns)}")
    if not len(examples):
        raise TrainingError("there are no examples", hint=f"give a table with {', '.join(columns)}")
    read = {file.name: pooch.file_hash(file) for file in sorted(base.glob("*.safetensors"))}
    inputs = row_key(base=read, examples=examples[columns].to_numpy().tolist(), settings=asdict(settings))
    stamp, weights, begun = folder / "student.json", folder / "model.safetensors", folder / "checkpoints" / "inputs"
    if stamp.is_file() and weights.is_file():
        made = json.loads(stamp.read_text())
        if made["inputs"] == inputs and made["weights"] == pooch.file_hash(weights):
            return pd.DataFrame(made["losses"])
    if not begun.is_file() or begun.read_text() != inputs:  # another student's beginnings are of no use
        if folder.exists() and any(folder.iterdir()) and not (stamp.is_file() or begun.is_file()):
            raise TrainingError(f"{folder} holds something that is no student", hint="give an empty or a new folder")
        shutil.rmtree(folder, ignore_errors=True)
        write_text(begun, inputs)
    trainer = _trainer(base, examples[columns], begun.parent, settings, device=device, progress=progress)
    try:
        trainer.train(resume_from_checkpoint=_last_whole(begun.parent))
    except (RuntimeError, MemoryError) as error:
        if not (isinstance(error, MemoryError) or "memory" in str(error)):
            raise
        hint = "take a smaller micro_batch or max_length, adapters (lora_rank), or a smaller model"
        raise TrainingError(f"no memory to train {folder.name}", hint=hint) from error
    model = trainer.accelerator.unwrap_model(trainer.model)
    model = model.merge_and_unload() if settings.lora_rank else model
    model.save_pretrained(folder, max_shard_size="1TB")
    trainer.processing_class.save_pretrained(folder)
    losses = [{k: row[k] for k in ("step", "epoch", "loss")} for row in trainer.state.log_history if "loss" in row]
    made = {"inputs": inputs, "weights": pooch.file_hash(weights), "settings": asdict(settings), "losses": losses}
    write_text(stamp, json.dumps(made, indent=1))
    shutil.rmtree(begun.parent)
    return pd.DataFrame(losses)


def _trainer(base: Path, rows: pd.DataFrame, work: Path, settings: Settings, *, device: str, progress: bool) -> Any:
    try:
        from peft import LoraConfig
        from trl.trainer import dpo_config, dpo_trainer, sft_config, sft_trainer
    except ImportError:
        hint = 'pip install -c constraints.txt -e ".[train]"'
        raise TrainingError("training needs TRL and PEFT, which are not installed", hint=hint) from None
    from datasets import Dataset
    from transformers import AutoTokenizer, PrinterCallback, set_seed

    from reprolib.inference.torch_judge import load_model

    set_seed(settings.seed)  # adapters begin with random weights
    model: Any = load_model(base, dtype="float32", device=device)
    tokenizer = AutoTokenizer.from_pretrained(base, local_files_only=True, trust_remote_code=False)
    steps = settings.epochs * math.ceil(len(rows) / settings.batch)
    how: dict[str, Any] = {
        "output_dir": str(work), "num_train_epochs": settings.epochs, "learning_rate": settings.learning_rate,
        "per_device_train_batch_size": min(settings.micro_batch, settings.batch),
        "gradient_accumulation_steps": max(1, settings.batch // settings.micro_batch),
        "lr_scheduler_type": "cosine", "warmup_steps": math.ceil(settings.warm_up * steps),
        "max_length": settings.max_length, "seed": settings.seed, "data_seed": settings.seed,
        "use_cpu": device == "cpu", "bf16": settings.dtype == "bfloat16", "gradient_checkpointing": device != "cpu",
        "save_strategy": "steps", "save_steps": max(1, steps // (settings.checkpoints + 1)), "save_total_limit": 2,
        "logging_steps": 1, "logging_nan_inf_filter": False, "report_to": "none", "disable_tqdm": not progress,
        "dataloader_pin_memory": False,
    }  # fmt: skip
    rank = settings.lora_rank
    adapters = LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear", task_type="CAUSAL_LM")
    parts: dict[str, Any] = {"model": model, "train_dataset": Dataset.from_pandas(rows, preserve_index=False)}
    parts |= {"processing_class": tokenizer, "peft_config": adapters if rank else None}
    parts |= {"callbacks": [_guard(math.log(model.get_output_embeddings().weight.shape[0]))]}
    if settings.method == "dpo":
        trainer: Any = dpo_trainer.DPOTrainer(**parts, args=dpo_config.DPOConfig(**how, beta=settings.beta))
    else:
        trainer = sft_trainer.SFTTrainer(**parts, args=sft_config.SFTConfig(**how))
    trainer.remove_callback(PrinterCallback)  # the curve says it
    return trainer


def _guard(blind: float) -> Any:
    """Stops a training whose loss is no number, or, halfway, no better than `blind`, that of a uniform guess."""
    from transformers import TrainerCallback

    class Guard(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            loss = (logs or {}).get("loss", 0.0)
            if not math.isfinite(loss) or (2 * state.global_step > state.max_steps and loss > 0.99 * blind):
                message = f"the loss is {loss:.3g} at step {state.global_step}: the training diverges"
                raise TrainingError(message, hint="take a smaller learning_rate")

    return Guard()


def _last_whole(work: Path) -> str | None:
    """The newest checkpoint whose last file, the trainer's state, can be read: others were cut short."""
    for folder in sorted(work.glob("checkpoint-*"), key=lambda path: -int(path.name.split("-")[1])):
        try:
            json.loads((folder / "trainer_state.json").read_text())
        except (OSError, ValueError):
            continue
        return str(folder)
    return None
