"""depthwise_conv2d_ext at the sizes where kernels change their way.

A size is there for one decision of a kernel's plan, named beside it, or for what it leaves over of
tiles, vectors and blocks. Those that are much for a CPU run on CUDA alone.
"""

from __future__ import annotations

import math

import pytest
import torch
from depthwise_cases import Case, Inputs, assert_within, conv2d, gradients, make_inputs
from torch import Tensor

op = torch.depthwise_conv2d_ext
backward = torch.ops.aten.depthwise_conv2d_ext_backward
ALL = (True, True, True)
HALVES = [torch.float16, torch.bfloat16]

SIZES = [
    Case(5, 3, 1, (56, 56), (7, 7), padding=(3, 3)),  # rows of whole blocks, a tail of images
    Case(2, 2, 1, (120, 112), (7, 7), padding=(3, 3)),  # strips
    Case(2, 2, 1, (64, 56), (7, 7), padding=(9, 9), dilation=(3, 3)),
    Case(2, 2, 1, (48, 40), (7, 7), stride=(2, 2), padding=(3, 3)),  # half and double the columns
    Case(19, 3, 1, (14, 14), (27, 27), padding=(13, 13)),  # window larger than the image; a table
    Case(9, 17, 1, (7, 7), (13, 13), padding=(6, 6)),  # a single block; channels left over
    Case(3, 2, 1, (28, 28), (29, 29), padding=(14, 14)),
    Case(2, 2, 1, (56, 56), (31, 31), padding=(15, 15)),  # five diagonals
    Case(2, 2, 1, (56, 56), (51, 5), padding=(25, 2)),
    Case(2, 2, 1, (130, 201), (9, 9), padding=(4, 4)),  # odd rows by elements, strips
    Case(3, 2, 1, (40, 48), (9, 9), stride=(2, 2), padding=(4, 4)),
    Case(2, 2, 1, (40, 33), (9, 11), stride=(2, 1), padding=(0, 7)),
    Case(2, 4, 2, (113, 112), (3, 3), padding=(1, 1)),  # several planes into one, in strips
    Case(2, 4, 3, (20, 13), (3, 3), padding=(1, 1)),
    Case(2, 3, 2, (31, 17), (11, 11), padding=(5, 5)),
    Case(1, 5, 1, (9, 97), (3, 3), padding=(1, 1)),  # long rows of no whole vectors
    Case(3, 6, 1, (1, 202), (1, 3)),
    Case(2, 8, 1, (1, 4099), (1, 4), padding=(0, 3)),  # sequences: causal, no whole vectors
    Case(2, 4, 1, (333, 1), (31, 1), padding=(15, 0)),  # upright, several groups of taps
    Case(1, 12, 1, (1, 50), (1, 64), padding=(0, 63)),  # the window longer than the line
    Case(2, 4, 1, (1, 77), (1, 17), padding=(0, 32), dilation=(1, 4)),
    Case(2, 8, 1, (5, 37), (1, 8), padding=(0, 1)),  # lines of images
    Case(2, 12, 1, (12, 9), (5, 1), padding=(2, 0), dilation=(3, 1)),
    Case(130, 36, 1, (1, 9), (1, 2)),
    Case(1, 40, 1, (7, 7), (3, 3), padding=(1, 1)),  # a device nearly empty
    Case(1, 50, 1, (56, 56), (3, 3), padding=(1, 1)),
    Case(2, 50, 1, (60, 58), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(19, 16, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(3, 8, 1, (7, 7), (13, 13), padding=(6, 6)),
    Case(17, 6, 1, (14, 14), (7, 7), padding=(3, 3)),
    Case(9, 4, 1, (14, 14), (27, 27), padding=(13, 13)),
    Case(17, 3, 1, (28, 28), (5, 5), padding=(2, 2)),
    Case(19, 16, 1, (14, 14), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(40, 8, 1, (14, 14), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(18, 24, 1, (7, 7), (5, 5), padding=(2, 2)),  # five rows of taps
    # The CPU's tiles of 14 results: a part of one, lanes done twice, a stride, a dilation
    Case(2, 37, 1, (17, 23), (11, 11), padding=(5, 5)),
    Case(2, 35, 1, (30, 41), (13, 15), stride=(1, 2), padding=(6, 7)),
    Case(1, 48, 1, (40, 40), (11, 13), padding=(10, 18), dilation=(2, 3)),
    # The CPU's rows that a vector holds, or two of: all lanes, a plane left over
    Case(3, 5, 1, (9, 16), (5, 5), padding=(4, 1)),
    Case(3, 5, 1, (13, 11), (7, 7), padding=(0, 5)),
    Case(3, 5, 1, (6, 8), (3, 3), padding=(1, 1)),
    Case(3, 7, 1, (2, 5), (3, 3), padding=(3, 2)),
    # Its tiles of 7 rows: rows left over, tiles and groups of taps outside, strides, two bands
    Case(2, 37, 1, (9, 35), (5, 5), stride=(2, 2), padding=(2, 2)),  # pixels, some twice
    Case(2, 50, 1, (14, 14), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(2, 37, 1, (6, 27), (3, 5), stride=(1, 2), padding=(1, 8)),  # more lines outside
    Case(1, 70, 1, (100, 93), (5, 5), stride=(2, 2), padding=(4, 4)),  # memory is asked for
    Case(2, 3, 1, (11, 40), (7, 7), padding=(3, 3)),
    Case(2, 3, 1, (10, 33), (5, 5), padding=(25, 2)),
    Case(2, 3, 2, (20, 37), (7, 5), stride=(2, 2), padding=(12, 2)),
    Case(1, 2, 1, (300, 301), (7, 7), padding=(3, 3)),
    Case(1, 2, 1, (400, 201), (5, 5), padding=(20, 20), dilation=(10, 10)),
    # Its tall tiles: one, two with fewest rows, rows done twice, a part of a vector, other padding
    Case(2, 3, 1, (14, 13), (5, 5), padding=(2, 4)),
    Case(2, 3, 1, (28, 10), (7, 7), padding=(3, 1)),
    Case(2, 3, 1, (17, 50), (7, 7), padding=(3, 3)),
    Case(3, 5, 1, (43, 17), (5, 5), padding=(2, 1)),
    Case(3, 5, 1, (30, 37), (3, 3), padding=(1, 2)),
    Case(2, 3, 1, (57, 20), (7, 7), padding=(3, 9)),
    # Its tiles of 7 pixels in channels last: one, two, more; not half a window outside, a dilation
    Case(2, 37, 1, (9, 7), (7, 7), padding=(3, 3)),
    Case(2, 48, 1, (5, 14), (5, 5), padding=(2, 2)),
    Case(2, 35, 1, (6, 28), (7, 7), padding=(3, 3)),
    Case(2, 35, 1, (6, 21), (7, 7), padding=(3, 2)),
    Case(1, 33, 1, (23, 63), (5, 5), padding=(6, 6), dilation=(3, 3)),
    Case(2, 37, 1, (7, 7), (13, 13), padding=(6, 6)),
    Case(2, 37, 1, (14, 14), (13, 13), stride=(2, 2), padding=(12, 12)),
    # Its marches: rows longer than one, of pixels, lines outside that no result or only some meet
    Case(1, 40, 1, (5, 301), (3, 3), padding=(1, 1)),
    Case(1, 35, 1, (9, 150), (3, 3), padding=(2, 0)),
    Case(2, 33, 1, (15, 24), (7, 7), stride=(2, 2)),  # grad_input by taps of 3 x 3
    Case(1, 33, 1, (6, 9), (3, 3), padding=(7, 8)),
    Case(2, 210, 1, (14, 14), (3, 3), padding=(1, 1)),  # planes that ask for the next one's memory
    Case(3, 411, 1, (8, 8), (3, 3), padding=(1, 1)),  # and for two, one left over
    Case(9, 64, 1, (90, 90), (3, 3), padding=(1, 1)),  # of pixels past the caches
    # Few rows of pixels: zeros all around, above and below alone, beside them alone
    Case(2, 40, 1, (2, 20), (3, 3), padding=(1, 1)),
    Case(2, 40, 1, (3, 18), (3, 3), padding=(1, 0)),
    Case(2, 50, 1, (4, 17), (3, 3), padding=(0, 2)),
    # Its lines of the weight's gradient: bands of rows, zeros around lines, rows that meet
    # nothing, a window wider than padded, sums that are in double on the way, chunks of images
    Case(2, 37, 1, (70, 61), (7, 7), padding=(3, 3)),
    Case(2, 37, 1, (60, 35), (51, 5), padding=(25, 3)),
    Case(2, 20, 1, (3, 21), (9, 15), padding=(7, 7)),
    Case(2, 20, 1, (40, 64), (9, 19), padding=(4, 16)),
    Case(90, 515, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(90, 17, 1, (7, 14), (7, 7), padding=(3, 3)),
    # Too many zeros above and below for tiles
    Case(2, 3, 1, (4, 20), (3, 3), padding=(200000, 1), dilation=(200000, 1)),
]
# The CPU's planes of 7 x 7, each a lane: channels left over, fewer than a vector, a single image.
SEVEN_PLANES = [
    Case(1, 37, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(1, 48, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(1, 21, 1, (7, 7), (7, 7), padding=(3, 3)),
    Case(2, 37, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(3, 50, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(2, 33, 1, (7, 7), (7, 7), padding=(3, 3)),
    Case(3, 5, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(2, 20, 1, (7, 7), (5, 5), padding=(1, 3)),  # results that are not 7 x 7
]
# Results that the CPU's kernels of planes store past the caches, not those of one image.
STREAMED = [
    Case(3, 41, 1, (299, 301), (3, 3), padding=(1, 1)),  # rows, planes, strips: no whole lines
    Case(3, 41, 1, (301, 299), (5, 5), stride=(2, 2), padding=(2, 2)),  # grad_input of all phases
    Case(3, 20, 2, (301, 297), (3, 3), padding=(2, 2), dilation=(2, 2)),
    Case(5, 140, 1, (119, 122), (5, 5), padding=(2, 2)),  # whole planes by tall tiles
    Case(3, 5001, 1, (28, 15), (5, 5), padding=(2, 2)),  # some of them at once
]
# CUDA's patches of 7 x 7; much for a CPU.
PATCHES = [
    Case(90, 251, 1, (7, 7), (3, 3), padding=(1, 1)),  # groups of planes, a group left over
    Case(90, 251, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(90, 251, 1, (7, 7), (7, 7), padding=(3, 3)),
    Case(51, 109, 1, (14, 14), (5, 5), padding=(2, 2)),
    Case(13, 109, 1, (28, 28), (7, 7), padding=(3, 3)),
    Case(5, 70, 1, (56, 56), (3, 3), padding=(1, 1)),
    Case(5, 70, 1, (56, 56), (7, 7), padding=(3, 3)),
    Case(1, 88, 1, (112, 112), (3, 3), padding=(1, 1)),  # bands
    Case(1, 60, 1, (128, 150), (3, 3), padding=(1, 1)),  # no whole tiles, bands
    Case(3, 90, 1, (65, 65), (5, 5), padding=(2, 2)),
    Case(3, 90, 1, (62, 69), (5, 5), padding=(0, 4)),  # other padding than the usual
    Case(3, 90, 1, (63, 69), (3, 3), padding=(2, 0)),
    Case(2, 60, 1, (112, 112), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(12, 120, 1, (28, 28), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(9, 60, 1, (55, 41), (5, 5), stride=(2, 2), padding=(1, 2)),
]
# Large windows over planes of 7 to 56 columns; much for a CPU.
LARGE_WINDOWS = [
    Case(129, 105, 1, (7, 7), (13, 13), padding=(6, 6)),  # images and channels left over
    Case(33, 67, 1, (14, 14), (9, 9), padding=(4, 4)),
    Case(17, 33, 1, (20, 14), (9, 9), padding=(4, 4)),
    Case(17, 66, 1, (2, 14), (9, 9), padding=(10, 4)),  # rows of grad_output that meet nothing
    Case(22, 17, 1, (28, 28), (9, 9), padding=(4, 4)),
    Case(22, 33, 1, (20, 28), (29, 5), padding=(14, 2)),
    Case(22, 5, 1, (56, 56), (9, 17), padding=(4, 8)),
    Case(43, 5, 1, (40, 56), (25, 5), padding=(12, 2)),
    Case(33, 34, 1, (14, 14), (27, 27), padding=(13, 13)),
    Case(22, 66, 1, (28, 28), (15, 17), padding=(5, 8)),
    Case(43, 34, 1, (10, 56), (10, 31), padding=(4, 15)),
    Case(43, 66, 1, (10, 56), (21, 5), padding=(10, 2)),
    Case(22, 66, 1, (20, 28), (21, 5), padding=(10, 2)),
    Case(22, 100, 1, (28, 28), (7, 7), padding=(3, 3)),
    Case(22, 100, 1, (10, 56), (7, 7), padding=(3, 3)),
    Case(19, 3, 1, (28, 28), (29, 29), padding=(14, 14)),
    Case(9, 3, 1, (56, 56), (31, 31), padding=(15, 15)),
    Case(19, 3, 1, (56, 56), (51, 5), padding=(25, 2)),
    Case(33, 4, 1, (20, 28), (29, 5), padding=(14, 2)),
    Case(9, 5, 1, (42, 52), (25, 5), padding=(12, 2)),
    Case(24, 3, 1, (13, 32), (13, 17), padding=(5, 8)),
    Case(17, 3, 1, (6, 28), (29, 9), padding=(20, 4)),
    Case(9, 3, 1, (24, 26), (11, 9), padding=(5, 4)),
    Case(33, 4, 1, (56, 56), (7, 7), padding=(3, 3)),
]
# Planes of 7 and 14 columns, of many images; much for a CPU.
SMALL_PLANES = [
    Case(33, 402, 1, (7, 7), (3, 3), padding=(1, 1)),  # images and channels left over
    Case(129, 134, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(49, 302, 1, (7, 7), (7, 7), padding=(3, 3)),
    Case(1030, 132, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(33, 135, 1, (14, 14), (3, 3), padding=(1, 1)),
    Case(51, 133, 1, (14, 14), (5, 5), padding=(2, 2)),
    Case(33, 133, 1, (14, 14), (7, 7), padding=(3, 3)),
    Case(49, 178, 1, (14, 14), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(129, 134, 1, (14, 14), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(65, 133, 1, (14, 14), (5, 5), stride=(2, 2), padding=(2, 2)),  # odd channels
    Case(35, 96, 1, (14, 14), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(73, 136, 1, (14, 14), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(300, 104, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(700, 104, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(1001, 104, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(7, 72, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(45, 39, 1, (14, 14), (3, 3), padding=(1, 1)),  # odd channels
    Case(840, 34, 1, (14, 14), (3, 3), padding=(1, 1)),
    Case(17, 35, 1, (14, 14), (5, 5), padding=(2, 2)),
    Case(17, 35, 1, (14, 14), (7, 7), padding=(3, 3)),
]
# Planes of 28 columns and more by 3 x 3 to 7 x 7; much for a CPU.
MIDDLE_PLANES = [
    Case(17, 49, 1, (31, 28), (5, 5), padding=(2, 2)),
    Case(33, 41, 1, (56, 56), (3, 3), padding=(1, 1)),
    Case(17, 49, 1, (3, 56), (7, 7), padding=(3, 3)),  # fewer rows than taps
    Case(20, 64, 1, (20, 52), (7, 7), padding=(3, 3)),
    Case(2, 64, 1, (131, 228), (7, 7), padding=(3, 3)),
    Case(9, 50, 1, (44, 100), (5, 9), padding=(2, 4)),
    Case(17, 25, 2, (56, 56), (7, 7), padding=(3, 3)),
    Case(33, 66, 1, (20, 56), (7, 7), padding=(9, 9), dilation=(3, 3)),
    Case(17, 49, 1, (30, 28), (5, 5), padding=(2, 2)),
    Case(33, 41, 2, (28, 28), (7, 7), padding=(3, 3)),  # several outputs of a channel
    Case(20, 66, 1, (29, 56), (7, 7), padding=(3, 3)),
    Case(16, 90, 1, (56, 56), (5, 5), padding=(2, 2)),
    Case(33, 58, 1, (31, 56), (7, 7), padding=(9, 9), dilation=(3, 3)),
]

# Rows of whole vectors; much for a CPU.
VECTOR_ROWS = [
    Case(3, 5, 1, (29, 28), (5, 5), padding=(2, 2)),
    Case(4, 3, 1, (61, 48), (3, 3), padding=(1, 1)),
    Case(2, 3, 1, (70, 132), (7, 7), padding=(3, 3)),
    Case(14, 3, 1, (3, 136), (3, 3), padding=(1, 1)),  # few rows
    Case(9, 61, 1, (77, 80), (5, 5), padding=(2, 2)),
    Case(33, 99, 1, (32, 32), (5, 5), padding=(2, 2)),
    Case(14, 51, 1, (56, 56), (7, 7), padding=(3, 3)),
    Case(23, 70, 1, (31, 68), (3, 3), padding=(1, 1)),
    Case(3, 33, 1, (130, 176), (7, 7), padding=(3, 3)),
    Case(5, 22, 2, (57, 96), (3, 3), padding=(1, 1)),
    Case(9, 31, 2, (67, 64), (3, 3), padding=(1, 1)),
    Case(9, 29, 2, (65, 68), (3, 3), padding=(1, 1)),
    Case(9, 31, 2, (102, 112), (3, 3), padding=(1, 1)),
    Case(2, 9, 1, (40, 44), (7, 7), padding=(9, 9), dilation=(3, 3)),
    Case(61, 13, 1, (28, 28), (3, 3), padding=(1, 1)),
    Case(13, 11, 1, (67, 64), (3, 3), padding=(1, 1)),
    Case(40, 10, 1, (31, 48), (3, 3), padding=(1, 1)),
    Case(9, 77, 1, (29, 40), (3, 3), padding=(1, 1)),
    Case(101, 113, 1, (28, 28), (5, 5), padding=(2, 2)),
]
# Planes of 20 to 56 columns by larger windows; much for a CPU.
WIDER_WINDOWS = [
    Case(23, 125, 1, (28, 28), (7, 7), padding=(3, 3)),
    Case(100, 30, 1, (28, 28), (5, 5), padding=(2, 2)),
    Case(48, 231, 1, (28, 28), (5, 5), padding=(2, 2)),
    Case(6, 133, 1, (56, 56), (7, 7), padding=(3, 3)),
    Case(50, 97, 1, (56, 56), (5, 5), padding=(2, 2)),
    Case(33, 77, 1, (20, 32), (5, 5), padding=(2, 2)),
    Case(30, 75, 1, (32, 32), (7, 7), padding=(3, 3)),
]
# Few elements.
FEW = [
    Case(1, 5, 1, (9, 12), (3, 3), padding=(1, 1)),
    Case(1, 6, 1, (61, 60), (3, 3), padding=(1, 1)),
    Case(1, 3, 1, (80, 84), (3, 3), padding=(1, 1)),
    Case(3, 5, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(2, 9, 1, (31, 27), (3, 3), padding=(1, 1)),
    Case(2, 3, 1, (1, 5), (3, 3), padding=(1, 1)),
    Case(2, 3, 1, (6, 1), (3, 3), padding=(1, 1)),
]
# The same for channels-last order.
FEW_PIXELS = [
    Case(1, 40, 1, (7, 7), (3, 3), padding=(1, 1)),
    Case(2, 20, 1, (9, 11), (3, 3), padding=(1, 1)),
    Case(1, 36, 1, (30, 29), (3, 3), padding=(1, 1)),
    Case(1, 18, 1, (30, 31), (3, 3), padding=(1, 1)),
    Case(2, 8, 1, (60, 62), (3, 3), padding=(1, 1)),
    Case(1, 68, 1, (64, 66), (3, 3), padding=(1, 1)),
    Case(1, 24, 1, (13, 8), (3, 3), padding=(3, 4), dilation=(2, 3)),  # phases
    Case(3, 12, 1, (2, 5), (3, 3), padding=(1, 2)),
    Case(2, 16, 1, (3, 33), (1, 3), padding=(0, 1)),
    # Of two taps that meet padding alone CUDA leaves out the left one
    Case(2, 16, 1, (1, 2), (3, 6), padding=(1, 13), dilation=(1, 3)),
]
# What CUDA's kernels of fixed windows and strides leave: results by phase of the stride, of a
# vector of channels or of one, groups of 2, 3 and 4 taps.
GENERIC = [
    Case(2, 5, 1, (9, 11), (2, 2), stride=(2, 2)),
    Case(3, 8, 1, (15, 13), (4, 4), stride=(4, 4)),  # rows and columns that no tap meets
    Case(2, 20, 1, (31, 30), (2, 3), padding=(1, 1)),
    Case(2, 12, 2, (17, 19), (4, 4), padding=(2, 2)),
    Case(2, 32, 1, (33, 29), (9, 9), stride=(2, 2), padding=(4, 4)),
    Case(2, 3, 1, (40, 41), (11, 11), stride=(4, 4), padding=(2, 2)),
    Case(3, 16, 4, (20, 21), (3, 3), stride=(3, 3), padding=(1, 1)),
    Case(2, 36, 1, (18, 22), (3, 3), stride=(2, 2), padding=(2, 2), dilation=(2, 2)),
    Case(2, 7, 1, (19, 23), (3, 3), stride=(2, 2), padding=(3, 2), dilation=(3, 2)),
    Case(2, 16, 1, (21, 20), (4, 2), stride=(3, 2), padding=(3, 1), dilation=(2, 3)),
    Case(2, 40, 1, (21, 17), (3, 1), padding=(1, 0)),
    Case(2, 9, 3, (20, 33), (1, 5), stride=(1, 2), padding=(0, 2)),
    Case(2, 4, 1, (11, 12), (2, 2), stride=(6, 4), dilation=(3, 4)),  # strides past the window
    Case(2, 6, 1, (5, 6), (5, 5), stride=(4, 3), padding=(7, 6), dilation=(2, 2)),
]
# Rows of whole vectors at stride 2; much for a CPU.
STRIDED_ROWS = [
    Case(40, 11, 1, (56, 56), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(9, 5, 1, (29, 28), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(13, 9, 1, (112, 112), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(129, 16, 1, (16, 16), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(7, 4, 1, (2, 20), (5, 5), stride=(2, 2), padding=(2, 2)),  # fewer rows than taps
    Case(2, 2, 1, (300, 64), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(2, 3, 1, (37, 160), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(2, 2, 1, (9, 1016), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(3, 2, 1, (40, 72), (3, 3), stride=(2, 2), padding=(1, 1)),
]

# Channels-last order, boxes at stride 1; much for a CPU.
BOXES = [
    Case(30, 144, 1, (17, 30), (3, 3), padding=(1, 1)),  # a tile that is not full, shares of images
    Case(9, 96, 1, (33, 56), (7, 7), padding=(3, 3)),  # rows in boxes of several, stretches
    Case(130, 136, 1, (9, 9), (3, 3), padding=(1, 1)),  # images side by side, some left over
    Case(5, 240, 1, (28, 28), (5, 5), padding=(2, 2)),
    Case(3, 728, 1, (33, 37), (3, 3), padding=(2, 2), dilation=(2, 2)),  # phases, one a row shorter
    Case(2, 64, 1, (50, 56), (7, 7), padding=(9, 9), dilation=(3, 3)),
    Case(40, 520, 1, (1, 202), (1, 3)),  # channels left over of a group
    Case(3, 24, 1, (100, 300), (5, 5), padding=(0, 4)),  # other padding than the usual
    Case(3, 16, 1, (2, 500), (7, 7), padding=(6, 3)),  # rows of results that meet few rows
    Case(2, 12, 1, (30, 30), (3, 3), padding=(1, 1)),
    Case(2, 24, 1, (11, 13), (3, 3), padding=(3, 2), dilation=(3, 2)),
    Case(9, 24, 1, (60, 230), (3, 3), padding=(1, 1)),  # few channels: a warp to ask for boxes
    Case(7, 40, 2, (61, 67), (3, 3), padding=(1, 1)),  # two outputs of a channel: no boxes
    Case(16, 8, 2, (70, 72), (3, 3), padding=(1, 1)),
    Case(5, 72, 2, (60, 62), (3, 3), padding=(2, 2), dilation=(2, 2)),
    # The weight's gradient and all gradients: tiles of seven columns, two rows a share at least.
    Case(30, 48, 1, (29, 35), (3, 3), padding=(1, 1)),  # groups of 48 channels, half a warp over
    Case(50, 48, 1, (7, 7), (5, 5), padding=(2, 2)),  # rows of grad_output from registers
    Case(130, 96, 1, (7, 7), (7, 7), padding=(3, 3)),  # and from the ring
    Case(30, 240, 1, (20, 21), (5, 5), padding=(2, 2)),
    Case(40, 256, 1, (16, 33), (3, 3), padding=(1, 1)),  # all of a multiprocessor in one block
    Case(3, 16, 1, (100, 300), (5, 5), padding=(0, 2)),  # grad_output is the smaller
    Case(40, 64, 1, (40, 90), (1, 3), padding=(0, 1)),  # rows of one image
    Case(3, 48, 1, (50, 112), (7, 7), padding=(3, 3)),
    Case(131, 48, 1, (7, 7), (5, 5), padding=(2, 2)),
    Case(15, 40, 1, (30, 27), (5, 5), padding=(4, 4), dilation=(2, 2)),
    # Images and channels left over, parts of tiles, several stretches
    Case(17, 40, 1, (28, 29), (7, 7), padding=(3, 3)),
    Case(33, 336, 1, (7, 7), (7, 7), padding=(3, 3)),
    Case(5, 136, 1, (21, 56), (5, 5), padding=(2, 2)),
    Case(3, 24, 1, (70, 130), (5, 5), padding=(0, 4)),
    Case(40, 64, 1, (56, 19), (7, 7), padding=(0, 3)),  # rows that end with the image
    # Phases, some a row or a column shorter; few rows of a phase, many phases of rows
    Case(17, 64, 1, (25, 29), (7, 7), padding=(9, 9), dilation=(3, 3)),
    Case(12, 40, 1, (50, 56), (5, 5), padding=(4, 4), dilation=(2, 2)),
    Case(33, 72, 1, (13, 21), (7, 7), padding=(18, 5), dilation=(6, 2)),
    Case(20, 64, 1, (30, 30), (7, 7), padding=(3, 12), dilation=(1, 4)),
    # Groups of images and channels left over, few rows, one
    Case(17, 40, 1, (20, 21), (7, 7), padding=(3, 3)),
    Case(12, 136, 1, (7, 29), (5, 5), padding=(2, 2)),
    Case(60, 640, 1, (2, 5), (7, 7), padding=(3, 3)),
    Case(31, 1000, 1, (1, 10), (5, 5), padding=(2, 2)),
    # Narrow planes, channels left over
    Case(190, 36, 1, (28, 9), (7, 7), padding=(3, 3)),
    Case(380, 36, 1, (14, 7), (7, 7), padding=(3, 4)),
    Case(130, 36, 1, (35, 9), (7, 7), padding=(3, 0)),
    Case(605, 36, 1, (7, 9), (7, 7), padding=(3, 3)),  # planes of seven rows
    Case(605, 36, 1, (7, 9), (5, 5), padding=(2, 2)),
    Case(3, 96, 1, (112, 112), (3, 3), stride=(2, 2), padding=(1, 1)),  # at stride 2: no boxes
    Case(2, 144, 1, (56, 56), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(5, 672, 1, (14, 14), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(9, 40, 1, (33, 65), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(33, 24, 1, (7, 9), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(12, 360, 1, (61, 64), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(24, 672, 1, (28, 27), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(4, 16, 1, (1, 9), (5, 5), stride=(2, 2), padding=(2, 2)),  # fewer rows than taps
    Case(5, 104, 1, (7, 7), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(20, 96, 1, (57, 61), (3, 3), stride=(2, 2), padding=(1, 1)),
]

# Channels-last order, channels that are no whole vectors or have several outputs each.
ODD_PIXELS = [
    Case(9, 33, 1, (65, 67), (3, 3), padding=(1, 1)),
    Case(3, 5, 1, (33, 31), (3, 3), padding=(1, 1)),
    Case(2, 365, 1, (40, 41), (3, 3), padding=(1, 1)),
    Case(7, 65, 1, (50, 51), (3, 3), padding=(2, 2), dilation=(2, 2)),  # phases, one a row shorter
    Case(2, 100, 1, (80, 81), (3, 3), padding=(3, 3), dilation=(3, 3)),
    Case(4, 17, 1, (60, 270), (3, 3), padding=(0, 1)),  # grad_output is the smaller
    Case(2, 9, 1, (11, 100), (3, 3), padding=(2, 2)),  # grad_output is the larger
    Case(3, 41, 1, (90, 100), (5, 5), padding=(2, 2)),
    Case(3, 41, 1, (90, 100), (7, 7), padding=(3, 3)),
    Case(1, 129, 1, (9, 16), (7, 7), padding=(9, 9), dilation=(3, 3)),
    Case(1, 513, 1, (8, 14), (5, 5), padding=(2, 2)),
    Case(5, 41, 1, (1, 90), (1, 3)),
    Case(3, 24, 2, (30, 31), (3, 3), padding=(1, 1)),  # two outputs
    Case(1, 400, 2, (6, 10), (3, 3), padding=(1, 1)),
    Case(2, 33, 3, (20, 21), (3, 3), padding=(1, 1)),
    Case(2, 18, 2, (20, 21), (7, 7), padding=(3, 3)),
    Case(3, 20, 2, (31, 30), (5, 5), stride=(2, 2), padding=(2, 2)),
    Case(2, 6, 9, (15, 18), (3, 3), padding=(1, 1)),
    Case(9, 33, 2, (27, 29), (3, 3), stride=(2, 2), padding=(1, 1)),
    Case(7, 25, 3, (30, 31), (3, 3), padding=(1, 1)),
    Case(2, 5, 3, (16, 15), (13, 13), padding=(6, 6)),
]

CHANNELS_LAST = FEW_PIXELS + BOXES + ODD_PIXELS

# Sequences, and rows of no whole vectors; much for a CPU.
ODD_ROWS = [
    Case(11, 250, 1, (1, 202), (1, 3)),
    Case(3, 1001, 1, (203, 1), (3, 1), padding=(1, 0)),  # the same upright
    Case(29, 400, 1, (1, 50), (1, 5), padding=(0, 4)),  # grad_output is the larger
    Case(2, 9, 1, (1, 40001), (1, 7), padding=(0, 3)),
    Case(7, 250, 1, (1, 333), (1, 3), padding=(0, 5), dilation=(1, 5)),
    Case(3, 60, 1, (65, 65), (3, 3), padding=(2, 2), dilation=(2, 2)),  # phases of rows
    Case(2, 9, 1, (67, 513), (3, 3), padding=(1, 1)),
    Case(3, 5, 1, (40, 1001), (3, 3), padding=(1, 1)),
    Case(5, 9, 1, (113, 113), (3, 3), padding=(1, 1)),
    Case(3, 60, 1, (58, 58), (3, 3)),  # no padding
    Case(4, 11, 1, (130, 97), (3, 3), padding=(2, 0)),
    Case(16, 33, 1, (33, 513), (3, 3), padding=(1, 1)),
    Case(9, 239, 1, (65, 65), (3, 3), padding=(2, 2), dilation=(2, 2)),
    Case(11, 250, 1, (58, 57), (3, 3), padding=(1, 1)),
    Case(5, 27, 1, (257, 257), (3, 3), padding=(2, 2), dilation=(2, 2)),
]

CUDA = ["cuda"] if torch.cuda.is_available() else []


def on_devices(sizes: list[Case], patches: list[Case]) -> list[tuple[Case, str]]:
    """Each of the sizes with every device, each of the patches with CUDA."""
    pairs = [(case, device) for case in sizes for device in ("cpu", *CUDA)]
    return pairs + [(case, device) for case in patches for device in CUDA]


SPOILT = [
    *(
        (*pair, dtype)
        for dtype in HALVES
        for pair in on_devices(SIZES[:12:2] + SEVEN_PLANES + GENERIC[::5], PATCHES[::5])
    ),
    *(
        (*pair, torch.float32)
        for pair in on_devices(
            SEVEN_PLANES,
            LARGE_WINDOWS[::2]
            + SMALL_PLANES
            + VECTOR_ROWS
            + WIDER_WINDOWS
            + STRIDED_ROWS
            + CHANNELS_LAST
            + FEW
            + ODD_ROWS,
        )
    ),
    *(
        (*pair, dtype)
        for dtype in HALVES
        for pair in on_devices(
            [],
            LARGE_WINDOWS[1::2]
            + SMALL_PLANES[::2]
            + MIDDLE_PLANES
            + VECTOR_ROWS
            + STRIDED_ROWS
            + CHANNELS_LAST
            + FEW
            + ODD_ROWS,
        )
    ),
]


def results(case: Case, inputs: Inputs, grad: Tensor) -> list[Tensor]:
    """The output and the three gradients."""
    x, w, _ = inputs
    return [op(*inputs, *case.window), *backward(grad, x, w, *case.window, ALL)]


def assert_matches_float64(
    case: Case, dtype: torch.dtype, device: str, memory_format: torch.memory_format
) -> None:
    """The output and all gradients within the a-priori bound, and the same bits twice."""
    inputs = make_inputs(case, device=device, dtype=dtype, memory_format=memory_format)
    exact = inputs.cast(device="cpu", dtype=torch.float64)
    absolute = Inputs(*(None if t is None else t.abs() for t in exact))
    expected = conv2d(case, exact)
    grad = torch.randn_like(expected).to(device=device, dtype=dtype)
    grad = grad.contiguous(memory_format=memory_format)
    references = [expected, *gradients(case, exact, grad)]
    magnitudes = [conv2d(case, absolute), *gradients(case, absolute, grad.abs())]
    taps = math.prod(case.kernel)
    pixels = case.batch * math.prod(expected.shape[2:])
    terms = (taps, taps * case.multiplier, pixels, pixels)
    first = results(case, inputs, grad)
    for mine, reference, magnitude, count in zip(first, references, magnitudes, terms, strict=True):
        assert_within(mine, reference, magnitude, count)
    for mine, again in zip(first, results(case, inputs, grad), strict=True):
        assert torch.equal(mine, again)
    if case in CHANNELS_LAST:  # whose weight's gradient alone is another kernel's
        only_weight = (False, True, True)
        alone = backward(grad, *inputs[:2], *case.window, only_weight)[1:]
        for mine, reference, magnitude in zip(alone, references[2:], magnitudes[2:], strict=True):
            assert_within(mine, reference, magnitude, pixels)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@pytest.mark.parametrize(
    ("case", "device"),
    on_devices(
        SIZES + SEVEN_PLANES + FEW + FEW_PIXELS + GENERIC,
        PATCHES
        + LARGE_WINDOWS
        + SMALL_PLANES
        + MIDDLE_PLANES
        + VECTOR_ROWS
        + WIDER_WINDOWS
        + STRIDED_ROWS
        + BOXES
        + ODD_PIXELS
        + ODD_ROWS,
    ),
    ids=str,
)
def test_every_tile_matches_the_float64_reference(
    case: Case, dtype: torch.dtype, device: str
) -> None:
    """Within the a-priori bound, the same bits twice, in both memory formats."""
    for memory_format in (torch.contiguous_format, torch.channels_last):
        assert_matches_float64(case, dtype, device, memory_format)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("kernel", [3, 5, 7, 13])
@pytest.mark.parametrize("device", ["cpu", *CUDA])
def test_rows_of_every_length_match_the_float64_reference(
    device: str, kernel: int, stride: int, dtype: torch.dtype
) -> None:
    """Fewer columns than any tile or vector has, and those of two and some."""
    for width in range(1, 36):
        for padding in {0, kernel // 2}:
            if width + 2 * padding < kernel:
                continue
            size = (kernel + 5, width)  # at a stride of 2 some are met by no result
            case = Case(2, 17, 1, size, (kernel, kernel), (stride,) * 2, (padding,) * 2)
            for memory_format in (torch.contiguous_format, torch.channels_last):
                assert_matches_float64(case, dtype, device, memory_format)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=str)
def test_strides_beyond_the_image_are_all_the_same(memory_format: torch.memory_format) -> None:
    """Also the largest there is, whose packed rows would be larger than any memory."""
    x = torch.randn(2, 17, 3, 19).contiguous(memory_format=memory_format)
    w = torch.randn(17, 1, 1, 5)
    once, again = (op(x, w, None, [stride] * 2, [1, 2], [1, 1]) for stride in (19, 2**31 - 1))
    assert torch.equal(once, again)
    exact = torch.nn.functional.conv2d(x.double(), w.double(), None, 19, (1, 2), groups=17)
    torch.testing.assert_close(once.double(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("case", STREAMED, ids=str)
def test_results_past_the_caches_are_those_of_single_images(case: Case, dtype: torch.dtype) -> None:
    """The same bits, with an infinity in a filter, whose planes are stored otherwise, too."""
    inputs = make_inputs(case, device="cpu", dtype=dtype)
    x, w, bias = inputs
    grad = torch.randn_like(op(*inputs, *case.window))
    for value in (w[0, 0, 0, 0].item(), math.inf):
        w.view(-1)[w.numel() // 2] = value
        expected = torch.cat([op(image, w, bias, *case.window) for image in x.split(1)])
        assert torch.equal(op(x, w, bias, *case.window).nan_to_num(), expected.nan_to_num())
        only_input = (True, False, False)
        parts = [
            backward(g, image, w, *case.window, only_input)[0]
            for g, image in zip(grad.split(1), x.split(1), strict=True)
        ]
        mine = backward(grad, x, w, *case.window, only_input)[0]
        assert torch.equal(mine.nan_to_num(), torch.cat(parts).nan_to_num())


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(("case", "device", "dtype"), SPOILT, ids=str)
def test_what_is_not_finite_stays_where_it_belongs(
    case: Case, device: str, dtype: torch.dtype, value: float
) -> None:
    """One such value in the input or the gradient: the results it belongs to, and no others.

    The reference pads with zeros that it multiplies, so that of a spoilt gradient it says nothing
    about the weight's.
    """
    memory_format = torch.channels_last if case in CHANNELS_LAST else torch.contiguous_format
    for index, checked in ((0, (0, 1, 2, 3)), (1, (1, 3))):
        inputs = make_inputs(case, device=device, dtype=dtype, memory_format=memory_format)
        grad = torch.randn_like(op(*inputs, *case.window))
        spoilt = (inputs.input, grad)[index]
        places = spoilt.movedim(1, -1) if case in CHANNELS_LAST else spoilt
        places.view(-1)[spoilt.numel() // 2] = value
        exact = inputs.cast(device="cpu", dtype=torch.float64)
        expected = [conv2d(case, exact), *gradients(case, exact, grad)]
        actual = results(case, inputs, grad)
        for i in checked:
            assert torch.equal(actual[i].isfinite().cpu(), expected[i].to(dtype).isfinite())
