// Threads of the OpenMP runtime that a framework has loaded. See `threads.h`.

#include "threads.h"

// What GCC compiles `#pragma omp parallel` into. Calling it by name lets any compiler share the threads of the OpenMP
// runtime that the framework has loaded. With the pragma, each compiler would link its own runtime.
extern "C" void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags);

namespace vocabench {

void work_in_threads(int threads, int, void (*work)(void *) noexcept, void *data) {
    GOMP_parallel(work, data, threads, 0);
}

}  // namespace vocabench
