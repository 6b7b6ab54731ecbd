/* The same random numbers for the same seed, everywhere: set `state` to anything but 0. */

#include <stdint.h>

static uint64_t state;

static uint32_t chance(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32) % below;
}
