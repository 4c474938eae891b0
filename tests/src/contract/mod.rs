//! The trainer contract as functions of a [`Target`], so that every device and precision runs the same cases.
//!
//! `contract_tests!(TARGET)` makes one `#[test]` of each case; [`CASES`] is the same list for other harnesses.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

pub mod bits;
pub mod clip;
pub mod dist;
pub mod files;
pub mod lm;
pub mod outliers;
pub mod random;
pub mod rules;
mod target;

pub use target::{Batch, Snapshot, Target, Tokens, assert_same, assert_same_but, snapshot};

/// Calls a macro with every case.
#[macro_export]
macro_rules! for_each_contract_case {
    ($then:ident ! ($($args:tt)*)) => {
        $then! { ($($args)*)
            bits::split_equals_fused,
            bits::graph_equals_eager_while_everything_changes,
            bits::one_applying_call_equals_accumulate_and_apply,
            bits::resume_equals_unbroken_and_weights_alone_do_not,
            bits::repeated_runs_are_equal,
            bits::trainers_on_threads_do_not_disturb_each_other,
            bits::absent_mask_equals_zero_mask,
            bits::recompute_changes_no_bit,
            bits::asking_for_the_input_gradient_changes_no_bit,
            bits::derived_values_follow_every_change_of_the_weights,
            bits::old_contents_of_buffers_do_not_leak,
            bits::callers_buffers_are_free_after_each_call,
            bits::state_is_carried_until_reset,
            rules::one_forward_feeds_one_backward,
            rules::what_cancels_a_pending_forward,
            rules::windows_open_accumulate_and_close,
            rules::an_open_window_blocks_what_would_break_it,
            rules::closing_options_do_not_go_with_accumulation,
            rules::thresholds_are_checked_everywhere,
            rules::learning_rates_are_checked,
            rules::lengths_are_checked_everywhere,
            rules::graph_rules,
            rules::capture_executes_nothing,
            rules::states_that_do_not_fit_are_refused,
            rules::input_gradient_only_on_request,
            rules::upload_replaces_the_open_window,
            rules::no_decay_groups_switch,
            clip::a_threshold_above_the_norm_changes_no_bit,
            clip::clipping_scales_the_whole_gradient,
            clip::control_clip_touches_its_spans_alone,
            clip::a_spike_discards_the_window,
            clip::a_non_finite_gradient_discards_the_window,
            clip::propagation_shows_nan_in_the_weights,
            clip::a_nan_window_can_be_discarded,
            clip::skips_inside_replay_leave_bits_alone,
            clip::too_many_skips_in_a_row_are_an_error,
            outliers::an_outlier_leaves_no_trace,
            outliers::outliers_need_a_history_and_the_option,
            outliers::eager_split_and_graph_skip_alike,
            outliers::a_run_resumes_in_the_middle_of_the_window,
            outliers::norm_histories_are_checked,
            lm::graph_and_windows_have_the_bits_of_eager_steps,
            lm::unequal_micro_batches_average_over_counted_tokens,
            lm::token_weights_weigh,
            lm::evaluation_changes_nothing,
            lm::windows_without_counted_tokens,
            lm::bad_batches_are_refused,
            lm::training_lowers_the_loss,
            files::a_state_file_round_trips,
            files::a_bad_file_leaves_the_trainer_alone,
            files::a_doctored_header_is_refused_or_sound,
            files::doctored_norms_are_refused,
            files::a_foreign_state_is_refused_by_field,
            files::non_finite_runs_are_not_saved,
            dist::a_group_of_one_equals_no_group,
            dist::ranks_take_the_same_step,
            dist::the_mean_counts_tokens_of_all_ranks,
            dist::a_spike_on_one_rank_skips_on_all,
            dist::a_missing_rank_is_an_error_in_time,
            dist::ranks_that_disagree_are_told,
            random::every_error_leaves_the_bits_alone,
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! contract_tests_of {
    (($target:expr) $($module:ident :: $case:ident,)*) => {
        $(
            #[test]
            fn $case() {
                $crate::contract::$module::$case(&$target);
            }
        )*
    };
}

/// One `#[test]` for each case, on a target. Import `contract_tests_of` beside it.
#[macro_export]
macro_rules! contract_tests {
    ($target:expr) => {
        $crate::for_each_contract_case! { contract_tests_of!($target) }
    };
}

macro_rules! case_list {
    (() $($module:ident :: $case:ident,)*) => {
        /// Name and function of every case.
        pub const CASES: &[(&str, fn(&Target))] =
            &[$((concat!(stringify!($module), "::", stringify!($case)), $module::$case),)*];
    };
}
for_each_contract_case! { case_list!() }
