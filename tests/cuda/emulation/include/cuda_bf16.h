// Stands for CUDA's header of this name: everything is in emulation.h.
#pragma once
#include "../emulation.h"
