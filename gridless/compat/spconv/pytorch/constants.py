"""The version of PyTorch as spconv writes it: a list of whole numbers."""

import re

import torch

PYTORCH_VERSION = [int(number) for number in re.findall(r"\d+", str(torch.__version__).partition("+")[0])[:3]]
