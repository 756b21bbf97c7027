//! The list of all cases, and the macro that makes a test of each.

/// Makes one test per case of the [conformance suite](crate::conformance), for the backend whose fixture
/// the named `async fn() -> impl Fixture` makes. The calling crate needs `tokio` with its macros.
#[macro_export]
macro_rules! conformance_tests {
    (@tests $fixture:ident; $($group:ident: $($case:ident)+;)+) => {$(
        mod $group {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    $crate::conformance::in_time($crate::conformance::$group::$case(super::$fixture().await)).await;
                }
            )+
        }
    )+};
    ($fixture:ident) => {
        $crate::conformance_tests! { @tests $fixture;
            submitting:
                a_task_is_kept_as_it_came
                an_unknown_task_is_not_there
                many_tasks_are_seen_in_one_look
                the_same_id_again_is_the_same_task
                the_same_key_again_is_the_same_task_or_a_conflict
                of_a_known_id_and_a_known_key_the_key_counts
                of_equal_submissions_at_once_one_is_new
                lists_are_newest_first_in_pages
                a_page_ends_where_it_has_much_text
                a_position_is_what_would_run_before
                a_far_position_is_estimated
                counts_are_what_there_is
                events_have_no_gaps_and_can_be_resumed
                every_change_is_announced
                costs_are_learnt_by_shape
                a_hundred_submissions_at_once_are_a_hundred_tasks;
            origins:
                where_a_task_came_from_is_kept
                a_task_of_an_unknown_dialect_runs_like_others
                a_task_is_looked_up_by_key_or_id
                tasks_of_a_dialect_are_listed_in_every_order
                lists_of_a_dialect_are_filtered_and_counted
                unfinished_tasks_are_counted_by_client
                hidden_tasks_are_listed_no_more
                many_tasks_are_hidden_at_once;
            queueing:
                urgent_tasks_first_then_in_the_order_they_came
                equals_are_served_first_come_first_served
                tenants_share_fairly
                a_worker_is_served_from_the_lanes_it_satisfies
                a_new_lane_reaches_a_waiting_worker
                loaded_models_are_preferred
                a_scheduled_task_starts_when_its_moment_comes
                a_hastened_task_is_queued_at_once
                a_deadline_ends_only_what_waits
                a_failed_task_avoids_the_worker_for_a_while
                what_avoids_a_worker_hides_nothing
                behind_all_that_avoids_a_worker_is_what_does_not;
            moments:
                the_last_moments_keep_nobody_from_working;
            laning:
                a_forgotten_lane_comes_back
                a_tenant_has_so_many_lanes_at_once
                of_many_lanes_the_next_task_is_served
                several_workers_share_many_lanes
                lanes_that_nobody_fits_are_in_nobodys_way
                what_a_task_came_with_outlives_its_lane
                a_position_among_many_lanes_is_estimated;
            errands:
                errands_fall_due_with_the_end_of_their_task
                an_errand_is_done_by_one_at_a_time
                a_failed_errand_comes_again
                errands_of_busy_tenants_wait
                many_who_take_errands_get_each_once
                errands_go_with_their_tasks;
            limiting:
                a_tenant_has_so_many_waiting_tasks
                a_tenant_stores_so_many_bytes
                many_at_once_do_not_get_by_a_quota
                of_several_reasons_the_first_is_told;
            claiming:
                a_claim_is_recorded_before_it_is_given
                the_last_attempts_are_told
                a_claim_without_work_waits_and_comes_back_empty
                a_newer_claim_of_a_worker_answers_the_one_before
                only_the_holder_of_a_worker_claims_for_it
                a_submission_serves_a_waiting_claim_at_once
                a_task_given_back_serves_a_waiting_claim
                idle_workers_come_before_busy_ones
                an_idle_worker_wants_what_only_waits_elsewhere
                nobody_wants_what_renders_or_what_they_cannot_run
                nobody_wants_what_is_being_cancelled
                a_claim_whose_caller_is_gone_is_given_back
                no_task_is_claimed_twice
                closing_answers_those_who_wait;
            leasing:
                a_beat_renews_and_notes_progress
                a_lease_that_ran_out_is_renewed_while_nobody_took_it
                a_beat_tells_what_was_lost
                a_newer_beat_of_a_process_answers_the_one_before
                a_result_is_kept_as_it_came
                a_failed_task_keeps_what_was_done
                failures_are_treated_by_their_class
                a_retry_comes_after_its_delay
                an_end_reported_twice_happens_once
                a_stale_holder_changes_nothing
                a_give_back_costs_nothing
                learnt_requirements_move_a_task_to_another_lane
                leases_are_listed_by_worker;
            losing:
                nothing_is_taken_before_it_ran_out
                the_next_holder_adopts_what_ran_out
                a_process_adopts_its_own_at_once
                what_is_large_is_adopted_a_little_at_a_time
                many_small_tasks_are_adopted_together
                others_leases_are_not_adopted_before_they_ran_out
                only_the_holder_of_the_worker_adopts
                nothing_is_lost_while_who_drives_its_worker_may_adopt_it
                a_lost_task_is_repeated_until_its_budget_is_used_up
                losses_do_not_use_up_retries
                nothing_is_taken_before_the_store_has_settled
                after_settling_there_is_time_to_adopt;
            harming:
                a_task_that_harmed_twice_is_set_aside
                the_same_harm_is_counted_once
                a_waiting_task_is_set_aside
                an_ended_task_stays_as_it_is
                harm_told_with_a_lease_needs_that_lease
                a_cancelled_task_is_not_set_aside;
            cancelling:
                a_waiting_task_ends_at_once
                a_cancellation_before_the_end_wins
                a_cancelled_task_does_not_come_back
                a_finished_task_cannot_be_cancelled
                the_holder_hears_of_it_at_once
                known_news_do_not_cut_a_wait_short;
            working:
                one_process_drives_a_worker
                a_worker_is_kept_and_reported_on
                a_released_worker_is_free
                who_let_go_of_a_worker_gets_nothing_for_it
                a_worker_that_ran_out_is_taken_over
                a_worker_that_ran_out_while_the_store_was_away_is_kept
                of_many_one_gets_the_worker
                workers_are_listed_and_forgotten;
            owning:
                only_the_owner_renews_a_lease
                only_the_owner_ends_an_attempt
                only_the_owner_gives_a_task_back
                only_the_owner_lets_go_of_a_worker
                leases_are_told_to_who_holds_the_worker
                progress_is_a_share
                another_tenants_task_id_is_a_conflict;
            registering:
                a_name_is_the_keys_that_registered_it
                the_installations_own_names_are_not_a_keys
                a_key_has_so_many_workers
                a_key_has_so_many_bytes_of_labels
                there_is_nobody_to_inherit_from
                a_key_brings_so_many_descriptions
                unused_descriptions_are_forgotten;
            restarting:
                everything_survives_a_restart
                a_restarted_process_adopts_its_own
                others_renew_after_a_restart
                a_clock_set_back_does_no_harm
                a_second_process_shares_or_is_refused
                processes_that_share_do_every_task_once;
            recording:
                one_process_leads
                keys_are_kept_and_revoked
                assets_are_found_by_content_and_name
                assets_are_listed_by_name
                deleted_assets_make_room_and_are_found_no_more
                a_name_of_an_asset_is_taken_back_alone
                who_reads_an_asset_is_found_until_it_ends
                documents_are_kept_and_replaced
                documents_are_listed_by_prefix
                a_tenant_keeps_so_many_documents_and_bytes
                descriptions_of_nodes_are_kept;
            housekeeping:
                tasks_with_leftovers_are_listed_until_swept
                old_tasks_are_forgotten_whole
                a_forgotten_task_leaves_no_key_and_no_leftovers
                housekeeping_takes_much_text_in_parts
                tidying_an_empty_store_does_nothing;
            sealing:
                what_is_secret_is_for_claims_only
                without_a_key_secrets_are_refused_by_name
                keys_follow_each_other_and_wrong_ones_are_refused;
            texts:
                long_texts_come_back_as_they_were
                a_long_task_is_taken_in_once;
            feeding:
                what_happens_is_in_the_feed
                a_feed_is_read_in_pages_and_resumed_anywhere
                an_old_feed_is_gone_and_says_where_to_begin;
            sharing:
                often_asked_reads_leave_readers_for_others
                large_writes_take_turns_between_tenants
                moments_at_the_end_of_time_do_no_harm
                long_failures_are_read_in_parts;
            storming:
                a_storm_leaves_the_books_balanced;
        }
    };
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_case_is_forgotten() {
        let listed = include_str!("cases.rs");
        let groups = [
            include_str!("submitting.rs"),
            include_str!("origins.rs"),
            include_str!("queueing.rs"),
            include_str!("laning.rs"),
            include_str!("limiting.rs"),
            include_str!("claiming.rs"),
            include_str!("leasing.rs"),
            include_str!("losing.rs"),
            include_str!("harming.rs"),
            include_str!("cancelling.rs"),
            include_str!("working.rs"),
            include_str!("owning.rs"),
            include_str!("registering.rs"),
            include_str!("restarting.rs"),
            include_str!("recording.rs"),
            include_str!("housekeeping.rs"),
            include_str!("sealing.rs"),
            include_str!("texts.rs"),
            include_str!("feeding.rs"),
            include_str!("sharing.rs"),
            include_str!("storming.rs"),
        ];
        let mut count = 0;
        for line in groups.iter().flat_map(|group| group.lines()) {
            let Some(rest) = line.strip_prefix("pub async fn ") else { continue };
            let name = rest.split('(').next().unwrap_or_default();
            assert!(
                listed.lines().any(|line| line.trim().trim_end_matches(';') == name),
                "{name} is not listed"
            );
            count += 1;
        }
        assert!(count > 50, "{count} cases were found");
    }
}
