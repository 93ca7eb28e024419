"""Switches that networks read or set. Only `SPCONV_ALLOW_TF32` has an effect, and only on a GPU."""

from pathlib import Path

PACKAGE_ROOT = Path(__file__).parent

# Allows TF32 products of float32. Read at every call; kernel size 1 follows torch's own switch.
SPCONV_ALLOW_TF32 = False

# Weights are (C_out, kernel..., C_in).
ALL_WEIGHT_IS_KRSC = True
FILTER_HWIO = False
SAVED_WEIGHT_LAYOUT = ""

SPCONV_DO_SORT = True
SPCONV_USE_DIRECT_TABLE = True
SPCONV_FX_TRACE_MODE = False
SPCONV_CPP_GEMM = False
SPCONV_CPP_INDICE_PAIRS = False
SPCONV_CPP_INDICE_PAIRS_IGEMM = False
SPCONV_DEBUG_WEIGHT = False
SPCONV_DEBUG_SAVE_PATH = ""
SPCONV_INT8_DEBUG = False
SPCONV_BWD_SPLITK = [1, 2, 4, 8, 16, 32, 64]
SPCONV_DIRECT_TABLE_HASH_SIZE_SCALE = 1.1
EDITABLE_INSTALLED = False
BOOST_ROOT = None
# True if there is no GPU code.
CPU_ONLY_BUILD = False
DISABLE_JIT = False
NDIM_DONT_CARE = 3
