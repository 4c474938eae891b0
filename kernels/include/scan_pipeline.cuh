// The scan's forward as a pipeline of producer and consumer warps: shared by the forward and by the ends of segments.
//
// A block has two halves. The consumers run the recurrence; the producers take everything that belongs to one channel and
// step (softplus before it, sum over lanes, skip and gate after it) and stage B and C. Four buffers of TT steps lie between
// them, each filled and emptied by one producer warp, so that the recurrence waits for neither memory nor them.
//
// ENDS: only the states after the last step and the sum of Δ are wanted, not y.
#pragma once
#include "scan_common.cuh"

#include <cstddef>
#include <type_traits>

constexpr int FORWARD_THREADS = 2 * SCAN_THREADS;
constexpr int BUFFERS = 4;
constexpr int PRODUCERS = SCAN_THREADS / BUFFERS;           // threads that own a buffer: one warp
constexpr int HANDOVER = SCAN_THREADS + PRODUCERS;          // threads at a barrier between the halves

template <int LANES_, int SPL_> struct ForwardTile {
    static constexpr int LANES = LANES_, SPL = SPL_, STATES = LANES * SPL;
    static constexpr int CB = SCAN_THREADS / LANES;                             // channels of a block
    static constexpr int TT = LANES < 4 ? 4 * LANES : SPL == 8 ? 8 : 16;        // steps of a buffer
    static constexpr int PARTS = LANES <= 4 ? LANES : 1;                        // sums of y that the producers add
    static constexpr int ITEMS = CB / 4 * (TT / 4);                             // 4 channels × 4 steps of a producer
    static_assert(ITEMS <= PRODUCERS, "one item a producer");
    static constexpr int COLS = STATES < 128 ? STATES : 128, ROWS = 128 / COLS; // of B that the producers stage at once
};

template <typename Tile> struct alignas(128) ForwardBuffer {
    float dt[Tile::CB * Tile::TT], dtu[Tile::CB * Tile::TT];                    // [channel][step], swizzled
    float y[Tile::CB * Tile::PARTS * Tile::TT];                                 // [channel][part][step], swizzled
    float b[Tile::TT * Tile::STATES], c[Tile::TT * Tile::STATES];
    float bias[Tile::CB], skip[Tile::CB];
    unsigned reset[32];                                                         // first: a bit a step
};

// Where Δ and the sums of y lie. The 16-byte units of a 128-byte line are permuted so that the consumers (neighbouring
// channels and parts, same steps) and the producers (every fourth channel, same steps) both reach all banks. All terms are
// joined by exclusive or: the place of channel 4q + i is that of channel 4q ^ that of channel i.
template <typename Tile> __device__ constexpr unsigned step_place(unsigned channel, unsigned t) {
    const unsigned line = channel * Tile::TT / 32;
    return (channel * Tile::TT + t) * 4 ^ (((line >> 1 ^ (line & 1) << 1) & 7) << 4);
}
template <typename Tile> __device__ constexpr unsigned sum_place(unsigned channel, unsigned part, unsigned t) {
    const unsigned row = channel * Tile::PARTS + part, line = row * Tile::TT / 32;
    return (row * Tile::TT + t) * 4 ^ (((line >> 3 ^ (line & 3)) & 7) << 4);
}
// `a` lies in an array that begins at a multiple of 128.
__device__ __forceinline__ unsigned join(unsigned a, unsigned place) { return (a ^ (place & 127)) + (place & ~127u); }

__device__ __forceinline__ void barrier_wait(int id) { asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(HANDOVER) : "memory"); }
__device__ __forceinline__ void barrier_arrive(int id) { asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(HANDOVER) : "memory"); }
__device__ __forceinline__ int filled(int buffer) { return 1 + buffer; }
__device__ __forceinline__ int drained(int buffer) { return 1 + BUFFERS + buffer; }

// Four neighbouring elements as they lie in memory.
template <typename T> struct alignas(4 * sizeof(T)) Quad {
    unsigned word[sizeof(T)];
};
template <typename T> __device__ __forceinline__ Pack<T, 4> elements(const Quad<T>& q) { return *reinterpret_cast<const Pack<T, 4>*>(&q); }

template <typename T> __device__ __forceinline__ void widen4(float (&f)[4], const Quad<T>& q) {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
#pragma unroll
        for (int i = 0; i < 2; ++i) f[2 * i] = __uint_as_float(q.word[i] << 16), f[2 * i + 1] = __uint_as_float(q.word[i] & 0xffff0000);
    } else {
        const Pack<T, 4> x = elements(q);
#pragma unroll
        for (int i = 0; i < 4; ++i) f[i] = widen(x.v[i]);
    }
}

template <typename T> __device__ __forceinline__ Quad<T> narrow4(const float (&f)[4]) {
    Quad<T> q;
    if constexpr (std::is_same_v<T, float>) {
#pragma unroll
        for (int i = 0; i < 4; ++i) q.word[i] = __float_as_uint(f[i]);
    } else {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            const Pack<T, 2> two = {narrow<T>(f[2 * i]), narrow<T>(f[2 * i + 1])};
            q.word[i] = *reinterpret_cast<const unsigned*>(&two);
        }
    }
    return q;
}

// All bits of an element that is minus infinity, in both halves of a word where two fit.
template <typename T> __device__ constexpr unsigned least();
template <> __device__ constexpr unsigned least<float>() { return 0xff800000; }
template <> __device__ constexpr unsigned least<__nv_bfloat16>() { return 0xff80ff80; }
template <> __device__ constexpr unsigned least<__half>() { return 0xfc00fc00; }

// The first `valid` of four elements; the others read as the bits of `none`. VECTOR: aligned, and all or none exist.
template <bool VECTOR, typename T> __device__ __forceinline__ Quad<T> load_quad(const T* p, int valid, unsigned none) {
    Quad<T> q;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) q.word[i] = none;
    if constexpr (VECTOR) {
        if (valid > 0) q = *reinterpret_cast<const Quad<T>*>(p);
    } else {
        Pack<T, 4> x = elements(q);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            if (i < valid) x.v[i] = p[i];
        q = *reinterpret_cast<const Quad<T>*>(&x);
        // Two elements a register, not one.
#pragma unroll
        for (int i = 0; i < static_cast<int>(sizeof(T)); ++i) asm("" : "+r"(q.word[i]));
    }
    return q;
}

// Four steps, `ld` apart, of four channels; `steps` of them exist.
template <typename T>
__device__ __forceinline__ void load_item(Quad<T> (&x)[4], const T* p, long long ld, int steps, int valid, unsigned none) {
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = load_quad<true>(p + k * ld, k < steps ? valid : 0, none);
}

// Shared memory by address: an exclusive or on an index would hide from the compiler which memory it is.
__device__ __forceinline__ void read4(float* r, unsigned address) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(r[0]), "=f"(r[1]), "=f"(r[2]), "=f"(r[3]) : "r"(address));
}
__device__ __forceinline__ void write4(unsigned address, const float* x) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
}

__device__ __forceinline__ float read1(unsigned address) {
    float x;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(address));
    return x;
}
__device__ __forceinline__ void write1(unsigned address, float x) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(x) : "memory"); }

// What a producer works on: four channels and four steps of its buffer.
template <typename T> struct Producer {
    const T *u, *raw, *z, *b, *c;
    T* out;
    const unsigned char* reset;
    long long token, at;                   // of the buffer's next steps; channel of the layer
    int thread, channel, step, valid;      // channel of the block; valid: channels that exist
    bool vector_bc;
};

// B and C of a buffer's steps, widened and padded with zeros. They are loaded (`FROM` 0) before the producer turns to Δ and
// stored after it: as many as registers allow, AHEAD rows; the others are loaded where they are stored.
template <typename Tile, typename T> struct States {
    static constexpr int ROWS = Tile::ROWS, COLS = Tile::COLS;
    static constexpr int TURNS = (Tile::TT + ROWS - 1) / ROWS * (Tile::STATES / COLS), AHEAD = TURNS < 2 || Tile::LANES > 8 ? 1 : 2;
    Quad<T> b[AHEAD], c[AHEAD];

    template <bool VECTOR, bool ENDS> static __device__ __forceinline__ void load(Quad<T>& b, Quad<T>& c, int turn, const Producer<T>& k, const ScanArgs& g, int steps) {
        const int row = k.thread / (COLS / 4) + turn / (Tile::STATES / COLS) * ROWS, n = k.thread % (COLS / 4) * 4 + turn % (Tile::STATES / COLS) * COLS;
        const int left = static_cast<int>(g.states) - n, valid = row < steps && left > 0 ? (left < 4 ? left : 4) : 0;
        const long long from = (k.token - k.step + row) * g.ld_bc + n;
        b = load_quad<VECTOR>(k.b + from, valid, 0);
        if constexpr (!ENDS) c = load_quad<VECTOR>(k.c + from, valid, 0);
    }
    template <bool ENDS> static __device__ __forceinline__ void store(unsigned base, const Quad<T>& b, const Quad<T>& c, int turn, int thread) {
        using Buffer = ForwardBuffer<Tile>;
        const int row = thread / (COLS / 4) + turn / (Tile::STATES / COLS) * ROWS, n = thread % (COLS / 4) * 4 + turn % (Tile::STATES / COLS) * COLS;
        if (ROWS > Tile::TT && row >= Tile::TT) return;
        const unsigned at = base + (row * Tile::STATES + n) * 4;
        float x[4];
        widen4(x, b);
        write4(at + static_cast<unsigned>(offsetof(Buffer, b)), x);
        if constexpr (ENDS) return;
        widen4(x, c);
        write4(at + static_cast<unsigned>(offsetof(Buffer, c)), x);
    }
    template <bool ENDS> __device__ __forceinline__ void load_ahead(const Producer<T>& k, const ScanArgs& g, int steps) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            if (k.vector_bc) load<true, ENDS>(b[i], c[i], i, k, g, steps);
            else load<false, ENDS>(b[i], c[i], i, k, g, steps);
        }
    }
    template <bool ENDS> __device__ __forceinline__ void stage(unsigned base, const Producer<T>& k, const ScanArgs& g, int steps) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) store<ENDS>(base, b[i], c[i], i, k.thread);
#pragma unroll 1
        for (int i = AHEAD; i < TURNS; ++i) {
            if (k.vector_bc) load<true, ENDS>(b[0], c[0], i, k, g, steps);
            else load<false, ENDS>(b[0], c[0], i, k, g, steps);
            store<ENDS>(base, b[0], c[0], i, k.thread);
        }
    }
};

// Δ; steps and channels that do not exist have softplus(-∞) = 0.
template <typename T> __device__ __forceinline__ void step_sizes(float (&dt)[4][4], const Quad<T> (&raw)[4], const float (&bias)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        float x[4];
        widen4(x, raw[j]);
#pragma unroll
        for (int i = 0; i < 4; ++i) dt[i][j] = softplus(x[i] + bias[i]);
    }
}

// Δ and Δ·u to the rows of four channels, the first of which lies at `at`.
template <typename Tile, typename T> __device__ __forceinline__ void stage_steps(unsigned at, const float (&dt)[4][4], const Quad<T> (&u)[4]) {
    float x[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) widen4(x[j], u[j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const unsigned to = join(at, step_place<Tile>(i, 0));
        const float dtu[4] = {dt[i][0] * x[0][i], dt[i][1] * x[1][i], dt[i][2] * x[2][i], dt[i][3] * x[3][i]};
        write4(to, dt[i]);
        write4(to + static_cast<unsigned>(sizeof(ForwardBuffer<Tile>::dt)), dtu);
    }
}

template <typename T> __device__ __forceinline__ void gates(float (&gate)[4][4], const Quad<T> (&z)[4]) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        widen4(gate[j], z[j]);
#pragma unroll
        for (int i = 0; i < 4; ++i) gate[j][i] *= sigmoid(gate[j][i]);
    }
}

template <int PARTS> __device__ __forceinline__ float sum_parts(const float* y, int stride) {
    if constexpr (PARTS == 1) return y[0];
    if constexpr (PARTS == 2) return y[0] + y[stride];
    if constexpr (PARTS == 4) return (y[0] + y[stride]) + (y[2 * stride] + y[3 * stride]);
}

// out = (y + D·u)·silu(z); the sums of y for the first of four channels lie at `at`.
template <typename Tile, typename T>
__device__ __forceinline__ void write_out(unsigned at, const Producer<T>& k, T* out, const Quad<T> (&u)[4], const float (&gate)[4][4],
                                          const float (&skip)[4], long long ld, int steps) {
    float r[4][4], wide_u[4][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) widen4(wide_u[j], u[j]);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        float part[Tile::PARTS * 4];
#pragma unroll
        for (int p = 0; p < Tile::PARTS; ++p) read4(part + 4 * p, join(at, sum_place<Tile>(i, p, 0)));
#pragma unroll
        for (int j = 0; j < 4; ++j) r[j][i] = fmaf(skip[i], wide_u[j][i], sum_parts<Tile::PARTS>(part + j, 4)) * gate[j][i];
    }
#pragma unroll
    for (int j = 0; j < 4; ++j)
        if (j < steps && k.valid > 0) *reinterpret_cast<Quad<T>*>(out + j * ld) = narrow4<T>(r[j]);
}

// The same, element by element, where addresses are not aligned or channels not whole.
template <typename Tile, typename T>
__device__ __forceinline__ void stage_elements(unsigned base, const Producer<T>& k, const float (&bias)[4], const ScanArgs& g, int steps) {
#pragma unroll 1
    for (int j = 0; j < 4; ++j) {
        const T *raw = k.raw + (k.token + j) * g.ld_raw + k.at, *u = k.u + (k.token + j) * g.ld_u + k.at;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const bool exists = j < steps && i < k.valid;
            const float dt = exists ? softplus(widen(raw[i]) + bias[i]) : 0.f, dtu = exists ? dt * widen(u[i]) : 0.f;
            const unsigned to = base + step_place<Tile>(k.channel + i, k.step + j);
            write1(to, dt);
            write1(to + static_cast<unsigned>(sizeof(ForwardBuffer<Tile>::dt)), dtu);
        }
    }
}
template <typename Tile, typename T>
__device__ __forceinline__ void write_elements(unsigned sums, const Producer<T>& k, long long token, const float (&skip)[4], const ScanArgs& g,
                                               int steps) {
#pragma unroll 1
    for (int j = 0; j < 4 && j < steps; ++j) {
        const T *z = k.z + (token + j) * g.ld_z + k.at, *u = k.u + (token + j) * g.ld_u + k.at;
        T* out = k.out + (token + j) * g.ld_out + k.at;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (i >= k.valid) continue;
            float part[Tile::PARTS];
#pragma unroll
            for (int p = 0; p < Tile::PARTS; ++p) part[p] = read1(sums + sum_place<Tile>(k.channel + i, p, k.step + j));
            const float gate = widen(z[i]);
            out[i] = narrow<T>(fmaf(skip[i], widen(u[i]), sum_parts<Tile::PARTS>(part, 1)) * (gate * sigmoid(gate)));
        }
    }
}

template <bool VECTOR, bool ENDS, typename Tile, typename T>
__device__ __forceinline__ void produce(unsigned memory, Producer<T> k, const ScanArgs& g, int seq_len) {
    using Buffer = ForwardBuffer<Tile>;
    constexpr int STRIDE = BUFFERS * Tile::TT;
    constexpr bool AHEAD = VECTOR && sizeof(T) == 2;   // registers allow it
    const int buffer = threadIdx.x / PRODUCERS - BUFFERS;
    const unsigned base = memory + buffer * static_cast<unsigned>(sizeof(Buffer)), sums = base + static_cast<unsigned>(offsetof(Buffer, y));
    const bool mine = k.step < Tile::TT;
    Quad<T> u[4], raw[4];
    if constexpr (AHEAD) load_item(raw, k.raw + k.token * g.ld_raw + k.at, g.ld_raw, seq_len - buffer * Tile::TT - k.step, k.valid, least<T>());
    // `steps`: how many exist from the buffer's next on. Each turn ends what the turn before began.
    bool begun = false;
#pragma unroll 1
    for (int steps = seq_len - buffer * Tile::TT; steps > -STRIDE; steps -= STRIDE) {
        if (begun && ENDS) {
            barrier_wait(drained(buffer));
        } else if (begun) {
            Quad<T> z[4];
            float skip[4], gate[4][4];
            const long long token = k.token - STRIDE;
            const int before = steps + STRIDE - k.step;
            if constexpr (VECTOR) load_item(z, k.z + token * g.ld_z + k.at, g.ld_z, before, k.valid, 0);
            if constexpr (VECTOR) gates(gate, z);
            read4(skip, base + static_cast<unsigned>(offsetof(Buffer, skip)) + k.channel * 4);
            barrier_wait(drained(buffer));
            if constexpr (VECTOR) {
                if (mine) write_out<Tile>(sums + sum_place<Tile>(k.channel, 0, k.step), k, k.out + token * g.ld_out + k.at, u, gate, skip, g.ld_out, before);
            } else {
                if (mine) write_elements<Tile>(sums, k, token, skip, g, before);
            }
        }
        if (steps <= 0) break;
        begun = true;
        if constexpr (VECTOR) {
            if constexpr (!AHEAD) load_item(raw, k.raw + k.token * g.ld_raw + k.at, g.ld_raw, steps - k.step, k.valid, least<T>());
            load_item(u, k.u + k.token * g.ld_u + k.at, g.ld_u, steps - k.step, k.valid, 0);
        }
        States<Tile, T> states;
        states.template load_ahead<ENDS>(k, g, steps);
        if (k.reset) {
            const unsigned mask = __ballot_sync(~0u, k.thread < Tile::TT && k.thread < steps && k.reset[k.token - k.step + k.thread]);
            if (k.thread == 0) write1(base + static_cast<unsigned>(offsetof(Buffer, reset)), __uint_as_float(mask));
        }
        if (mine) {
            float bias[4];
            read4(bias, base + static_cast<unsigned>(offsetof(Buffer, bias)) + k.channel * 4);
            if constexpr (VECTOR) {
                float dt[4][4];
                step_sizes(dt, raw, bias);
                stage_steps<Tile>(base + step_place<Tile>(k.channel, k.step), dt, u);
            } else {
                stage_elements<Tile>(base, k, bias, g, steps - k.step);
            }
        }
        states.template stage<ENDS>(base, k, g, steps);
        k.token += STRIDE;
        barrier_arrive(filled(buffer));
        if constexpr (AHEAD) load_item(raw, k.raw + k.token * g.ld_raw + k.at, g.ld_raw, steps - STRIDE - k.step, k.valid, least<T>());
    }
}

// Shared addresses of a consumer's rows at some step.
struct Rows {
    unsigned dt, b;
};

// Four steps of a lane's states. `reset`: a bit a step. `sum`: of Δ, -∞ from the first reset on.
template <bool RESET, bool ENDS, typename Tile>
__device__ __forceinline__ void four_steps(Rows at, unsigned reset, const float (&a2)[Tile::SPL], float (&h)[Tile::SPL], float (&y)[4], float& sum) {
    using Buffer = ForwardBuffer<Tile>;
    constexpr int SPL = Tile::SPL, C = sizeof(Buffer::b);
    float dt[4], dtu[4];
    read4(dt, at.dt);
    read4(dtu, at.dt + sizeof(Buffer::dt));
#pragma unroll
    for (int k = 0; k < 4; ++k) {
        float vb[SPL], vc[SPL];
#pragma unroll
        for (int i = 0; i < SPL; i += 4) {
            read4(vb + i, at.b + (k * Tile::STATES + i) * 4);
            if constexpr (!ENDS) read4(vc + i, at.b + (k * Tile::STATES + i) * 4 + C);
        }
        if (RESET && reset >> k & 1) {
#pragma unroll
            for (int i = 0; i < SPL; ++i) h[i] = 0.f;
            if constexpr (ENDS) sum = -__int_as_float(0x7f800000);
        }
        if constexpr (ENDS) sum += dt[k];
#pragma unroll
        for (int i = 0; i < SPL; ++i) {
            h[i] = fmaf(exp2_fast(dt[k] * a2[i]), h[i], dtu[k] * vb[i]);
            if constexpr (!ENDS) y[k] = i == 0 ? h[i] * vc[i] : fmaf(h[i], vc[i], y[k]);
        }
    }
    if constexpr (!ENDS && Tile::PARTS != Tile::LANES) sum_lanes<Tile::LANES>(y, threadIdx.x % 32);
}

// What `four_steps` left.
template <typename Tile> __device__ __forceinline__ void put_sums(unsigned at, int part, const float (&y)[4]) {
    if constexpr (Tile::PARTS == Tile::LANES) {
        write4(at, y);
    } else {
        if (part < 4) write1(at + part * 4, y[0]);
    }
}

template <bool ENDS, typename Tile>
__device__ __forceinline__ float consume(unsigned memory, const float (&a2)[Tile::SPL], float (&h)[Tile::SPL], int channel, int part,
                                         int seq_len, bool packed, float* saved, const ScanArgs& g) {
    using Buffer = ForwardBuffer<Tile>;
    constexpr int TT = Tile::TT, SPL = Tile::SPL, STEP = Tile::STATES * 4;
    float sum = 0.f;
    unsigned dt = memory + step_place<Tile>(channel, 0), b = memory + static_cast<unsigned>(offsetof(Buffer, b)) + part * SPL * 4;
    unsigned to = memory + static_cast<unsigned>(offsetof(Buffer, y)) + sum_place<Tile>(channel, part % Tile::PARTS, 0);
    unsigned marks_at = memory + static_cast<unsigned>(offsetof(Buffer, reset));
    int buffer = 0;
#pragma unroll 1
    for (int left = seq_len; left > 0; left -= TT) {
        if (!ENDS && saved && (TT == SCAN_CHUNK || (seq_len - left) % SCAN_CHUNK == 0)) {
#pragma unroll
            for (int i = 0; i < SPL; i += 4) *reinterpret_cast<float4*>(saved + i) = make_float4(h[i], h[i + 1], h[i + 2], h[i + 3]);
            saved += g.channels * Tile::STATES;
        }
        barrier_wait(filled(buffer));
        unsigned marks = 0;
        if (packed) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(marks) : "r"(marks_at));
        if (marks == 0 && left >= TT) {
            // Stored last: until then the reads of later steps can run ahead.
            float y[TT / 4][4];
#pragma unroll
            for (int k = 0; k < TT; k += 4) four_steps<false, ENDS, Tile>({dt ^ (k * 4), b + k * STEP}, 0, a2, h, y[k / 4], sum);
#pragma unroll
            for (int k = 0; !ENDS && k < TT; k += 4) put_sums<Tile>(to ^ (k * 4), part, y[k / 4]);
        } else {
#pragma unroll 1
            for (int k = 0; k < TT && k < left; k += 4) {
                float y[4];
                four_steps<true, ENDS, Tile>({dt ^ (k * 4), b + k * STEP}, marks >> k, a2, h, y, sum);
                if constexpr (!ENDS) put_sums<Tile>(to ^ (k * 4), part, y);
            }
        }
        barrier_arrive(drained(buffer));
        const bool last = ++buffer == BUFFERS;
        const unsigned move = last ? 0u - (BUFFERS - 1) * static_cast<unsigned>(sizeof(Buffer)) : static_cast<unsigned>(sizeof(Buffer));
        dt += move, b += move, to += move, marks_at += move;
        if (last) buffer = 0;
    }
    return sum;
}

template <typename T> __device__ __forceinline__ bool aligned4(const T* p, long long ld) {
    return reinterpret_cast<unsigned long long>(p) % (4 * sizeof(T)) == 0 && ld % 4 == 0;
}


// A producer of the sequence whose steps begin at `token0`, in the block whose channels begin at `c0`.
template <typename Tile, typename T>
__device__ __forceinline__ Producer<T> make_producer(unsigned shared, const T* u, const T* raw, const T* z, const T* b, const T* c, T* out,
                                                     const float* d, const float* dt_bias, const unsigned char* reset, long long token0,
                                                     long long c0, const ScanArgs& g) {
    using Buffer = ForwardBuffer<Tile>;
    Producer<T> k;
    const int buffer = threadIdx.x / PRODUCERS - BUFFERS;
    k.thread = threadIdx.x % PRODUCERS;
    k.channel = k.thread % (Tile::CB / 4) * 4, k.step = k.thread / (Tile::CB / 4) * 4;
    const long long at = c0 + k.channel, left = k.step < Tile::TT ? g.channels - at : 0;
    k.valid = static_cast<int>(left < 0 ? 0 : left < 4 ? left : 4);
    k.token = token0 + buffer * Tile::TT + k.step, k.at = at;
    k.u = u, k.raw = raw, k.z = z, k.b = b, k.c = c, k.out = out;
    k.reset = reset;
    k.vector_bc = aligned4(b, g.ld_bc) && aligned4(c, g.ld_bc) && g.states % 4 == 0;
    if (k.step < Tile::TT) {   // each reads back only what it wrote itself
        const unsigned to = shared + buffer * static_cast<unsigned>(sizeof(Buffer)) + k.channel * 4;
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = i < k.valid ? dt_bias[at + i] : 0.f;
        write4(to + static_cast<unsigned>(offsetof(Buffer, bias)), x);
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = d && i < k.valid ? d[at + i] : 0.f;
        write4(to + static_cast<unsigned>(offsetof(Buffer, skip)), x);
    }
    return k;
}

// Place of a consumer. With few lanes a channel, neighbours in a warp are two channels: then 16-byte reads of B and C
// serve two lanes at once.
template <int LANES> __device__ __forceinline__ int lane_part(int thread) { return LANES <= 4 ? thread % 32 / 2 % LANES : thread % LANES; }
template <int LANES> __device__ __forceinline__ int lane_row(int thread) {
    const int lane = thread % 32;
    return thread / 32 * (32 / LANES) + (LANES <= 4 ? lane % 2 + lane / (2 * LANES) * 2 : lane / LANES);
}

// Long sequences are cut into segments, by their length alone: a row's bits do not depend on the batch.
constexpr int SCAN_SEGMENT = 2048, SCAN_WHOLE = 8192;
__device__ __forceinline__ unsigned segments_of(long long seq_len) {
    return seq_len <= SCAN_WHOLE ? 1 : static_cast<unsigned>((seq_len + SCAN_SEGMENT - 1) / SCAN_SEGMENT);
}
